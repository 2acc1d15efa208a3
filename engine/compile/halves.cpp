#include "engine/compile/halves.h"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "engine/plan/arena.h"

namespace engine::compile {
namespace {

using graph::TensorType;
using graph::ValueKind;

// Which drafts run once for both halves: what sums over the rows of a microbatch sums over those of both, where
// it finds them one behind the other, and buckets are exchanged for both.
class BothFinder {
 public:
  BothFinder(const HalvesInputs& inputs, const DraftSegment& segment) : in_(inputs) {
    for (const Draft& draft : segment.drafts) {
      for (const plan::BufferRef& output : draft.instruction.outputs) {
        if (output.value >= 0 && ValueOf(output).kind == ValueKind::kActivation)
          made_here_.insert(output.value);
      }
    }
  }

  bool IsOfBoth(const plan::Instruction& instruction) const {
    if (IsFlat(instruction)) return true;
    const graph::OpDef* op = instruction.op();
    if (op == nullptr || !op->sums_rows) return false;
    const bool only_adds =
        std::all_of(instruction.outputs.begin(), instruction.outputs.end(),
                    [&](const auto& output) { return ValueOf(output).kind == ValueKind::kAccumulator; });
    return only_adds && std::all_of(instruction.inputs.begin(), instruction.inputs.end(),
                                    [&](const auto& input) { return MayLieBeside(input); });
  }

 private:
  const plan::LocalValue& ValueOf(const plan::BufferRef& ref) const {
    return in_.plan->values[static_cast<size_t>(ref.value)];
  }

  bool MayLieBeside(const plan::BufferRef& ref) const {
    if (ValueOf(ref).local.rank() < 2 || ref.bytes() % plan::kAlignment != 0) return false;
    const auto first = in_.storage->first.find(ref.value);
    if (first == in_.storage->first.end()) return made_here_.contains(ref.value);
    return in_.storage->second.at(ref.value).offset - first->second.offset == ref.bytes();
  }

  const HalvesInputs& in_;
  absl::flat_hash_set<std::int32_t> made_here_;
};

// The same instruction for the rows of both halves.
Draft OfBoth(const HalvesInputs& in, const Draft& draft) {
  Draft both = draft;
  plan::Instruction& instruction = both.instruction;
  instruction.half = plan::Half::kBoth;
  plan::Kernel* kernel = instruction.AsKernel();
  if (kernel == nullptr || kernel->op == nullptr) return both;
  std::vector<TensorType> inputs;
  std::vector<TensorType> outputs;
  for (plan::BufferRef& input : instruction.inputs) {
    input.elements *= in.plan->halves;
    inputs.push_back({in.plan->values[static_cast<size_t>(input.value)].local, input.dtype});
    inputs.back().shape[0] *= in.plan->halves;
  }
  for (const plan::BufferRef& output : instruction.outputs)
    outputs.push_back({in.plan->values[static_cast<size_t>(output.value)].local, output.dtype});
  kernel->work = kernel->op->work(inputs, outputs, kernel->attributes);
  if (in.profile->slow) kernel->slow = in.profile->slow(kernel->name, inputs, kernel->attributes);
  if (in.profile->scratch_bytes)
    both.scratch_bytes = in.profile->scratch_bytes(kernel->name, inputs, outputs, kernel->attributes);
  return both;
}

// Where the halves' values lie one behind the other: in slots and buffers of the pipeline, which is given, and
// transients that an instruction of both reads, which are placed here, before there is an order: the order
// depends on which of them lie at one place.
class BesidePlacer {
 public:
  BesidePlacer(const HalvesInputs& inputs, const std::vector<Draft>& drafts, const DraftSegment& segment)
      : in_(inputs), drafts_(drafts), made_at_(segment.made_at) {
    std::int64_t scratch = 0;
    for (size_t i = 0; i < drafts_.size(); ++i) {
      const auto& [instruction, scratch_bytes] = drafts_[i];
      const bool of_both = instruction.half == plan::Half::kBoth && instruction.op() != nullptr;
      for (const plan::BufferRef& input : instruction.inputs) {
        if (input.value < 0) continue;
        last_use_[input.value] = i;
        if (of_both && !in_.storage->first.contains(input.value)) beside_.insert(input.value);
      }
      if (instruction.LeavesAddition()) partial_.insert(instruction.inputs[0].value);
      if (of_both) scratch = std::max(scratch, scratch_bytes);
    }
    // At the same place for all of them, as they run one after the other.
    if (scratch > 0) ranges_.Allocate(scratch);
  }

  // The items, with the places of what they read and write.
  std::vector<TurnItem> Run() {
    std::vector<TurnItem> items;
    for (size_t i = 0; i < drafts_.size(); ++i) {
      const plan::Instruction& instruction = drafts_[i].instruction;
      TurnItem item{.instruction = &instruction,
                    .both = instruction.half == plan::Half::kBoth,
                    .seconds = EstimateSeconds(instruction, in_.rates)};
      if (!IsFlat(instruction)) {
        for (const plan::BufferRef& input : instruction.inputs) Note(input.value, &item.reads);
        PlaceOutputs(instruction, i);
        for (const plan::BufferRef& output : instruction.outputs) Note(output.value, &item.writes);
        Release(instruction, i);
        EndBlock(instruction);
      }
      items.push_back(std::move(item));
    }
    return items;
  }

  std::int64_t bytes() const { return ranges_.peak(); }

  // Of the transients that lie beside each other, and of what takes their place.
  HalfStorage Places() const {
    HalfStorage storage;
    for (const auto& [value, transient] : transient_) {
      if (!transient.place) continue;
      plan::BufferRef ref = Unplaced(*in_.plan, value);
      ref.in_slot = transient.place->region == BesidePlace::Region::kSlot;
      ref.offset = transient.place->offset +
                   (transient.place->region == BesidePlace::Region::kTransients ? in_.transient_base : 0);
      storage.first[value] = ref;
      ref.offset += transient.place->stride;
      storage.second[value] = ref;
    }
    return storage;
  }

 private:
  struct Transient {
    std::optional<BesidePlace> place;  // none: each half's apart
    std::int64_t range = -1;           // of ranges_; −1: none
    bool shard = false;                // another place on each rank
  };

  std::int64_t Bytes(std::int32_t value) const {
    return in_.plan->values[static_cast<size_t>(value)].local_bytes();
  }

  // None where the halves' values are apart, or share a place.
  std::optional<BesidePlace> PlaceOf(std::int32_t value) const {
    const auto alias = made_at_.find(value);
    const std::int32_t at = alias == made_at_.end() ? value : alias->second;
    if (const auto it = transient_.find(at); it != transient_.end()) return it->second.place;
    const auto it = in_.storage->first.find(at);
    if (it == in_.storage->first.end()) return std::nullopt;
    const plan::BufferRef& first = it->second;
    const std::int64_t stride = in_.storage->second.at(at).offset - first.offset;
    if (stride == 0) return std::nullopt;
    return BesidePlace{.region = first.in_slot ? BesidePlace::Region::kSlot : BesidePlace::Region::kBuffers,
                       .offset = first.offset,
                       .stride = stride,
                       .bytes = first.bytes()};
  }

  void Note(std::int32_t value, std::vector<BesidePlace>* places) const {
    if (const auto place = PlaceOf(value)) places->push_back(*place);
  }

  bool DiesAt(std::int32_t value, size_t i) const {
    const auto it = last_use_.find(value);
    return it == last_use_.end() || it->second == i;
  }

  void PlaceOutputs(const plan::Instruction& instruction, size_t i) {
    if (instruction.LeavesAddition()) {  // where the rank's own term is, which is a transient of its half
      Transient& donor = transient_.at(instruction.inputs[0].value);
      Transient sum = donor;
      sum.shard = instruction.collective() == plan::Collective::kReduceScatter;
      transient_[instruction.outputs[0].value] = sum;
      return;
    }
    for (size_t k = 0; k < instruction.outputs.size(); ++k) {
      const std::int32_t value = instruction.outputs[k].value;
      if (in_.storage->first.contains(value) || made_at_.contains(value)) continue;
      Transient transient;
      const bool beside = beside_.contains(value);
      const std::int32_t donor = k == 0 ? InPlace(instruction, i) : -1;
      if (donor >= 0 && !partial_.contains(value) && (!beside || PlaceOf(donor))) {
        transient.place = PlaceOf(donor);
        if (const auto it = transient_.find(donor); it != transient_.end())
          transient.range = std::exchange(it->second.range, -1);
      } else if (beside) {
        transient.range = ranges_.Allocate(in_.plan->halves * Bytes(value));
        transient.place =
            BesidePlace{.offset = transient.range, .stride = Bytes(value), .bytes = Bytes(value)};
      }
      transient_[value] = transient;
    }
  }

  // The input whose bytes output 0 of this op takes over, or −1: as Place does it.
  std::int32_t InPlace(const plan::Instruction& instruction, size_t i) const {
    const std::int32_t value = InPlaceInput(*in_.plan, instruction);
    if (value < 0 || !DiesAt(value, i)) return -1;
    const auto transient = transient_.find(value);
    if (transient != transient_.end() && transient->second.shard) return -1;
    const bool mine = (transient != transient_.end() && !made_at_.contains(value)) ||
                      (in_.dying != nullptr && in_.dying->contains(value));
    return mine ? value : -1;
  }

  void Release(const plan::Instruction& instruction, size_t i) {
    const auto release = [&](std::int32_t value) {
      const auto it = transient_.find(value);
      if (it == transient_.end() || it->second.range < 0) return;
      released_.emplace_back(std::exchange(it->second.range, -1), blocks_);
    };
    for (const plan::BufferRef& input : instruction.inputs) {
      if (DiesAt(input.value, i)) release(input.value);
    }
    for (const plan::BufferRef& output : instruction.outputs) {
      if (!last_use_.contains(output.value)) release(output.value);
    }
  }

  // What lies side by side is free for others a while after its last use, so that halves seldom wait until the
  // other, and what is made of both, have come as far; not before exchange that uses it is waited for.
  void EndBlock(const plan::Instruction& instruction) {
    constexpr std::int64_t kBlocks = 2;
    if (plan::IsBehind(instruction.stream)) {
      under_way_ = true;
    } else if (under_way_ && instruction.half != plan::Half::kBoth) {
      under_way_ = false;
      ++blocks_;
      std::erase_if(released_, [&](const auto& released) {
        if (released.second + kBlocks > blocks_) return false;
        ranges_.Free(released.first);
        return true;
      });
    }
  }

  const HalvesInputs& in_;
  const std::vector<Draft>& drafts_;
  const absl::flat_hash_map<std::int32_t, std::int32_t>& made_at_;
  plan::RangeAllocator ranges_;
  absl::flat_hash_map<std::int32_t, size_t> last_use_;
  absl::flat_hash_map<std::int32_t, Transient> transient_;
  absl::flat_hash_set<std::int32_t> partial_;  // what sums add up that are left to their readers
  absl::flat_hash_set<std::int32_t> beside_;   // transients that instructions of both read
  bool under_way_ = false;                     // exchange, since what was computed last
  std::int64_t blocks_ = 0;                    // of computation between exchanges, so far
  std::vector<std::pair<std::int64_t, std::int64_t>> released_;  // of ranges_, and in which block
};

// Writes the list out in its order, each instruction with what it waits for.
class Writer {
 public:
  Writer(const HalvesInputs& inputs, const std::vector<Draft>& drafts) : in_(inputs), drafts_(drafts) {}

  std::vector<Draft> Write(const std::vector<HalfTurn>& order) {
    for (const HalfTurn& turn : order) {
      Draft draft = drafts_[turn.item];
      plan::Instruction& instruction = draft.instruction;
      instruction.half = turn.half;
      if (turn.half == plan::Half::kSecond) SetSecond(&instruction);
      FindWaits(turn, &instruction);
      const bool of_both = turn.half == plan::Half::kBoth && instruction.op() != nullptr;
      if (of_both && draft.scratch_bytes > 0) {  // at the beginning of what lies side by side (BesidePlacer)
        instruction.scratch = {.offset = in_.transient_base,
                               .elements = std::exchange(draft.scratch_bytes, 0),
                               .dtype = DType::kU8};
      }
      if (instruction.AsConversion() != nullptr && plan::IsBehind(instruction.stream))
        under_way_.push_back({turn, static_cast<std::int32_t>(list_.size())});
      list_.push_back(std::move(draft));
    }
    return std::move(list_);
  }

 private:
  struct UnderWay {
    HalfTurn turn;
    std::int32_t index = -1;
  };

  // The first half has overwritten what the iteration before left, and has waited for the bucket.
  static void SetSecond(plan::Instruction* instruction) {
    if (plan::Kernel* kernel = instruction->AsKernel()) kernel->fresh = 0;
    instruction->waits_for_bucket = -1;
  }

  // Computation of a half waits for all that its half has exchanged, and an exchange that reads what another
  // one made waits for all before it; what is made of both halves waits for what either has exchanged before
  // it in the list of one microbatch.
  void FindWaits(const HalfTurn& turn, plan::Instruction* instruction) {
    const bool of_both = turn.half == plan::Half::kBoth;
    if (of_both && instruction->op() == nullptr) return;
    const bool computes = !plan::IsBehind(instruction->stream);
    const auto waits = [&](const UnderWay& exchange) {
      if (of_both) return exchange.turn.item < turn.item;
      return exchange.turn.half == turn.half;
    };
    const bool reads =
        !computes && std::any_of(under_way_.begin(), under_way_.end(), [&](const UnderWay& exchange) {
          return waits(exchange) &&
                 drafts_[exchange.turn.item].instruction.outputs[0].value == instruction->inputs[0].value;
        });
    if (!computes && !reads) return;
    for (const UnderWay& exchange : under_way_) {
      if (waits(exchange)) instruction->waits.push_back(exchange.index);
    }
    std::erase_if(under_way_, waits);
  }

  const HalvesInputs& in_;
  const std::vector<Draft>& drafts_;
  std::vector<Draft> list_;
  std::vector<UnderWay> under_way_;
};

}  // namespace

Halved Halve(const HalvesInputs& inputs, const DraftSegment& segment) {
  const BothFinder finder(inputs, segment);
  std::vector<Draft> drafts;
  Halved result;
  result.segment.name = segment.name;
  result.segment.chunk = segment.chunk;
  result.segment.made_at = segment.made_at;
  result.segment.halves = true;
  const double halves = static_cast<double>(inputs.plan->halves);
  for (const Draft& draft : segment.drafts) {
    const bool both = finder.IsOfBoth(draft.instruction);
    drafts.push_back(both ? OfBoth(inputs, draft) : draft);
    plan::Instruction& instruction = drafts.back().instruction;
    if (instruction.AsConversion() != nullptr && instruction.Exchanges())
      instruction.stream = plan::kExchangeStream;
    result.segment.flops += instruction.work().flops / (both ? halves : 1);
    result.segment.product_flops += instruction.work().product_flops / (both ? halves : 1);
  }
  BesidePlacer placer(inputs, drafts, segment);
  const std::vector<TurnItem> items = placer.Run();
  const Interleaving interleaving = Interleave(items);
  result.stuck = interleaving.order.empty() && !drafts.empty();
  result.segment.drafts = Writer(inputs, drafts).Write(interleaving.order);
  result.beside = placer.Places();
  result.beside_bytes = plan::Aligned(placer.bytes());
  return result;
}

}  // namespace engine::compile
