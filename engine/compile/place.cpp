#include "engine/compile/place.h"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <utility>

#include "engine/plan/arena.h"

namespace engine::compile {
namespace {

using plan::Half;

class TransientPlacer {
 public:
  // second_base: offset of the second half's transients where these have a pool of their own; −1: both halves have
  // one pool.
  TransientPlacer(const PlaceInputs& inputs, DraftSegment segment, std::int64_t second_base)
      : in_(inputs), draft_(std::move(segment)), second_base_(second_base) {
    segment_.name = draft_.name;
    segment_.chunk = draft_.chunk;
    segment_.halves = draft_.halves;
    segment_.flops = draft_.flops;
    segment_.product_flops = draft_.product_flops;
  }

  plan::Segment Run(std::int64_t* bytes, plan::BufferRef* kept) {
    FindUses();
    exchanged_.resize(draft_.drafts.size());
    for (size_t i = 0; i < draft_.drafts.size(); ++i) {
      if (!IsFlat(draft_.drafts[i].instruction)) PlaceDraft(i);
      segment_.instructions.push_back(std::move(draft_.drafts[i].instruction));
    }
    *bytes = second_base_ < 0 ? ranges_.peak()
                              : 2 * plan::Aligned(std::max(ranges_.peak(), second_ranges_.peak()));
    if (kept != nullptr && in_.keep >= 0) *kept = transient_.at({in_.keep, Half::kFirst}).ref;
    return std::move(segment_);
  }

 private:
  using Key = std::pair<std::int32_t, Half>;  // a value of a half
  struct Transient {
    plan::BufferRef ref;
    std::int64_t range = -1;  // offset in ranges_; −1: bytes borrowed from a slot
  };
  // Where the other rank's term of a sum arrives, until the reader of the sum has run.
  struct Term {
    plan::BufferRef ref;
    std::int64_t range = -1;
  };

  // Calls visit(key) for each half's value that an instruction takes.
  template <typename Visit>
  static void ForEachInput(const plan::Instruction& instruction, const Visit& visit) {
    for (const plan::BufferRef& input : instruction.inputs) {
      for (const Half half : {Half::kFirst, Half::kSecond}) {
        if (input.value >= 0 && (instruction.half == half || instruction.half == Half::kBoth))
          visit(Key(input.value, half));
      }
    }
  }

  void FindUses() {
    for (size_t i = 0; i < draft_.drafts.size(); ++i) {
      const plan::Instruction& instruction = draft_.drafts[i].instruction;
      if (IsFlat(instruction)) continue;
      ForEachInput(instruction, [&](const Key& key) { last_use_[key] = i; });
      if (instruction.LeavesAddition()) partial_.insert(instruction.inputs[0].value);
    }
  }

  bool DiesAt(const Key& key, size_t i) const {
    const auto it = last_use_.find(key);
    return key.first != in_.keep && (it == last_use_.end() || it->second == i);
  }

  plan::BufferRef Ref(const Key& key) const {
    if (const auto it = draft_.made_at.find(key.first); it != draft_.made_at.end()) {
      plan::BufferRef ref = in_.storage->of(key.second).at(it->second);
      ref.value = key.first;
      return ref;
    }
    if (const auto it = transient_.find(key); it != transient_.end()) return it->second.ref;
    const Storage& storage = in_.storage->of(key.second);
    const auto it = storage.find(key.first);
    ENGINE_CHECK(it != storage.end(), "{}: {} has no place", segment_.name,
                 in_.plan->values[static_cast<size_t>(key.first)].name);
    return it->second;
  }

  // Of what is made of both halves: of the first, which the second lies behind.
  plan::BufferRef InputRef(const plan::Instruction& instruction, const plan::BufferRef& input) const {
    if (instruction.half != Half::kBoth) return Ref({input.value, instruction.half});
    plan::BufferRef ref = Ref({input.value, Half::kFirst});
    ENGINE_CHECK(Ref({input.value, Half::kSecond}).offset == ref.offset + ref.bytes(),
                 "{}: {} reads halves that do not lie one behind the other", segment_.name, instruction.name);
    ref.elements = input.elements;
    return ref;
  }

  bool IsPlaced(const plan::BufferRef& output, Half half) const {
    return in_.storage->of(half).contains(output.value) || draft_.made_at.contains(output.value);
  }

  // The transient, or dying value, whose bytes output 0 takes over; none: −1.
  std::int32_t InPlace(const plan::Instruction& instruction, size_t i) const {
    const Key key(InPlaceInput(*in_.plan, instruction), instruction.half);
    if (key.first < 0 || !DiesAt(key, i) || partial_.contains(instruction.outputs[0].value)) return -1;
    const auto transient = transient_.find(key);
    if (transient != transient_.end() && !transient->second.ref.shard_axes.empty()) return -1;
    const bool mine =
        transient != transient_.end() || (in_.dying != nullptr && in_.dying->contains(key.first));
    return mine ? key.first : -1;
  }

  void PlaceOutput(const plan::Instruction& instruction, size_t k, size_t i) {
    const plan::BufferRef& output = instruction.outputs[k];
    const std::int32_t donor = k == 0 ? InPlace(instruction, i) : -1;
    Transient place;
    if (donor >= 0) {
      place.ref = Ref({donor, instruction.half});
      if (const auto it = transient_.find({donor, instruction.half}); it != transient_.end())
        place.range = std::exchange(it->second.range, -1);
    } else {
      place.range = Allocate(output.bytes(), instruction.half);
      place.ref.offset = in_.transient_base + place.range;
    }
    place.ref.value = output.value;
    place.ref.elements = output.elements;
    place.ref.dtype = output.dtype;
    transient_[{output.value, instruction.half}] = place;
  }

  // The sum lies where this rank's part of it does.
  void PlaceLeftSum(const plan::Instruction& instruction) {
    const plan::BufferRef& output = instruction.outputs[0];
    Transient& donor = transient_.at({instruction.inputs[0].value, instruction.half});
    Transient place = donor;
    donor.range = -1;  // handed over
    place.ref.value = output.value;
    place.ref.elements = output.elements;
    if (instruction.collective() == plan::Collective::kReduceScatter) {
      place.ref.shard_axes = instruction.group().axes;
      place.ref.shard_stride = place.ref.bytes();
    }
    transient_[{output.value, instruction.half}] = place;
  }

  void PlaceDraft(size_t i) {
    plan::Instruction& instruction = draft_.drafts[i].instruction;
    const bool beside = plan::IsBehind(instruction.stream);  // exchange beside computation
    // Computation may overwrite what an exchange uses when it has waited for that.
    for (std::int32_t wait : instruction.waits) {
      const Half half = segment_.instructions[static_cast<size_t>(wait)].half;
      for (std::int64_t range : exchanged_[static_cast<size_t>(wait)]) FreeRange(range, half);
      exchanged_[static_cast<size_t>(wait)].clear();
    }
    for (plan::BufferRef& input : instruction.inputs) input = InputRef(instruction, input);
    if (instruction.LeavesAddition()) {
      PlaceLeftSum(instruction);
    } else {
      for (size_t k = 0; k < instruction.outputs.size(); ++k) {
        if (!IsPlaced(instruction.outputs[k], instruction.half)) PlaceOutput(instruction, k, i);
      }
    }
    for (plan::BufferRef& output : instruction.outputs) output = Ref({output.value, instruction.half});
    PlaceScratch(draft_.drafts[i].scratch_bytes, i, &instruction);
    if (plan::Kernel* kernel = instruction.AsKernel(); kernel != nullptr && kernel->adds) {
      const plan::BufferRef& sum = instruction.inputs[static_cast<size_t>(kernel->adds->input)];
      const Term& term = terms_.at({sum.value, instruction.half});
      kernel->adds->place = term.ref;
      FreeRange(term.range, instruction.half);
    }
    // Of what is read and made here for the last time.
    const auto release = [&](const Key& key) {
      const auto it = transient_.find(key);
      if (it == transient_.end() || it->second.range < 0) return;
      const std::int64_t range = std::exchange(it->second.range, -1);
      if (beside) {
        exchanged_[i].push_back(range);
      } else {
        FreeRange(range, key.second);
      }
    };
    ForEachInput(instruction, [&](const Key& key) {
      if (DiesAt(key, i)) release(key);
    });
    for (const plan::BufferRef& output : instruction.outputs) {
      const Key key(output.value, instruction.half);
      if (!last_use_.contains(key) && DiesAt(key, i)) release(key);
    }
  }

  void PlaceScratch(std::int64_t bytes, size_t i, plan::Instruction* instruction) {
    if (bytes == 0) return;
    const std::int64_t range = Allocate(bytes, instruction->half);
    instruction->scratch = {.offset = in_.transient_base + range, .elements = bytes, .dtype = DType::kU8};
    if (instruction->LeavesAddition()) {
      const plan::BufferRef& sum = instruction->outputs[0];
      terms_[{sum.value, instruction->half}] = {
          .ref = {.offset = instruction->scratch.offset, .elements = sum.elements, .dtype = sum.dtype},
          .range = range};
    } else if (plan::IsBehind(instruction->stream)) {
      exchanged_[i].push_back(range);
    } else {
      FreeRange(range, instruction->half);
    }
  }

  bool IsApart(Half half) const { return second_base_ >= 0 && half == Half::kSecond; }
  std::int64_t Allocate(std::int64_t bytes, Half half) {
    return IsApart(half) ? second_base_ + second_ranges_.Allocate(bytes) : ranges_.Allocate(bytes);
  }
  void FreeRange(std::int64_t range, Half half) {
    IsApart(half) ? second_ranges_.Free(range - second_base_) : ranges_.Free(range);
  }

  const PlaceInputs& in_;
  DraftSegment draft_;
  plan::Segment segment_;
  const std::int64_t second_base_;
  plan::RangeAllocator ranges_, second_ranges_;
  absl::flat_hash_map<Key, size_t> last_use_;
  absl::flat_hash_map<Key, Transient> transient_;
  absl::flat_hash_map<Key, Term> terms_;       // by the sum
  absl::flat_hash_set<std::int32_t> partial_;  // what sums add up that are left to their readers
  // Of ranges_, by exchange beside computation: what it uses, and nothing needs behind it.
  std::vector<std::vector<std::int64_t>> exchanged_;
};

}  // namespace

plan::Segment Place(const PlaceInputs& inputs, DraftSegment segment, std::int64_t* bytes,
                    plan::BufferRef* kept) {
  constexpr std::int64_t kOnePool = -1;
  if (!segment.halves) return TransientPlacer(inputs, std::move(segment), kOnePool).Run(bytes, kept);
  // Each half has a pool of its own. How far it reaches does not depend on the order in which the halves take turns, so
  // that a chunk of many blocks needs what one of few needs, which the search takes for granted (search/fold.h).
  std::int64_t both = 0;
  TransientPlacer(inputs, segment, 0).Run(&both, kept);
  *bytes = both;
  return TransientPlacer(inputs, std::move(segment), both / 2).Run(&both, kept);
}

}  // namespace engine::compile
