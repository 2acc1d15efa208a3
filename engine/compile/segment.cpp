#include "engine/compile/segment.h"

#include <absl/container/flat_hash_set.h>

#include <algorithm>

namespace engine::compile {
namespace {

using graph::TensorType;
using graph::ValueKind;

class SegmentBuilder {
 public:
  SegmentBuilder(const SegmentInputs& inputs, std::string name, std::int32_t chunk) : in_(inputs) {
    segment_.name = std::move(name);
    segment_.chunk = chunk;
    if (in_.summed != nullptr) summed_ = *in_.summed;
  }

  plan::Segment Build(TransientBytes* bytes, plan::BufferRef* kept) {
    FindLastUses();
    FindAliases();
    FindJoint();
    FindUnsummed();
    for (size_t i = 0; i < in_.nodes->size(); ++i) Add(static_cast<std::int32_t>(i));
    *bytes = {.own = ranges_.peak(), .joint = joint_ranges_.peak()};
    if (kept != nullptr && in_.keep >= 0) *kept = transient_.at(in_.keep).ref;
    return std::move(segment_);
  }

 private:
  struct Transient {
    plan::BufferRef ref;
    std::int64_t range = -1;  // offset in ranges_; −1: bytes borrowed from a slot
    bool joint = false;       // in joint_ranges_
  };

  const LocalNode& NodeAt(std::int32_t i) const {
    return in_.graph->nodes[static_cast<size_t>((*in_.nodes)[static_cast<size_t>(i)])];
  }
  const plan::LocalValue& ValueOf(std::int32_t plan_value) const {
    return in_.plan->values[static_cast<size_t>(plan_value)];
  }
  std::int32_t Global(std::int32_t local) const { return in_.base + local; }

  void FindLastUses() {
    for (size_t i = 0; i < in_.nodes->size(); ++i) {
      for (std::int32_t input : NodeAt(static_cast<std::int32_t>(i)).inputs) {
        last_use_[Global(input)] = static_cast<std::int32_t>(i);
        ++readers_[Global(input)];
      }
      for (std::int32_t output : NodeAt(static_cast<std::int32_t>(i)).outputs) {
        if (in_.graph->values[static_cast<size_t>(output)].kind == ValueKind::kActivation)
          made_here_.insert(Global(output));
      }
    }
  }

  bool DiesAt(std::int32_t value, std::int32_t i) const {
    const auto it = last_use_.find(value);
    return value != in_.keep && (it == last_use_.end() ? true : it->second == i);
  }

  // A transient that an op turns in place into a value with a place of its own is made there to begin with.
  // Not where slots' values die: the place may be another's until then.
  void FindAliases() {
    if (in_.dying != nullptr) return;
    for (size_t i = 0; i < in_.nodes->size(); ++i) {
      const LocalNode& node = NodeAt(static_cast<std::int32_t>(i));
      if (node.op == nullptr || !MadeHere(node.outputs[0]) || node.op->in_place_input < 0) continue;
      const auto place = in_.storage->find(Global(node.outputs[0]));
      const std::int32_t local = node.inputs[static_cast<size_t>(node.op->in_place_input)];
      const std::int32_t value = Global(local);
      if (place == in_.storage->end() || !place->second.in_slot) continue;
      if (in_.storage->contains(value) || !MadeHere(local)) continue;
      if (readers_[value] != 1 || value == in_.keep || Bytes(value) != Bytes(Global(node.outputs[0])))
        continue;
      plan::BufferRef ref = place->second;
      ref.value = value;
      aliases_[value] = ref;
    }
  }

  // What sums over the samples of a microbatch sums over those of both lanes at once, where it finds them
  // side by side.
  void FindJoint() {
    if (!in_.in_lane) return;
    for (size_t i = 0; i < in_.nodes->size(); ++i) {
      const LocalNode& node = NodeAt(static_cast<std::int32_t>(i));
      if (node.op == nullptr || !node.op->sums_rows || !OnlyAdds(node)) continue;
      if (!std::all_of(node.inputs.begin(), node.inputs.end(), [&](auto v) { return MayLieBeside(v); }))
        continue;
      joint_.insert(static_cast<std::int32_t>(i));
      for (std::int32_t input : node.inputs) {
        if (!in_.storage->contains(Global(input))) beside_.insert(Global(input));
      }
      if (!in_.profile->scratch_bytes) continue;
      const auto [inputs, outputs] = TypesOf(static_cast<std::int32_t>(i));
      joint_scratch_ = std::max(joint_scratch_,
                                in_.profile->scratch_bytes(node.op->name, inputs, outputs, node.attributes));
    }
    // At the same place for all of them, as they run one after the other.
    if (joint_scratch_ > 0) joint_ranges_.Allocate(joint_scratch_);
  }

  bool OnlyAdds(const LocalNode& node) const {
    return std::all_of(node.outputs.begin(), node.outputs.end(), [&](std::int32_t output) {
      return ValueOf(Global(output)).kind == ValueKind::kAccumulator;
    });
  }

  // Whether both lanes' can be one behind the other.
  bool MayLieBeside(std::int32_t local) const {
    const auto place = in_.storage->find(Global(local));
    const std::int64_t bytes = Bytes(Global(local));
    const bool whole = ValueOf(Global(local)).local.rank() > 1 && bytes % plan::kAlignment == 0;
    return whole && (place == in_.storage->end() ? MadeHere(local) : place->second.lane_stride == bytes);
  }

  // Whether the value lives from the instruction that makes it to one that reads it once, in bytes of its
  // own.
  bool PassesOnce(std::int32_t local) const {
    const std::int32_t value = Global(local);
    const auto readers = readers_.find(value);
    return MadeHere(local) && !in_.storage->contains(value) && !aliases_.contains(value) &&
           value != in_.keep && readers != readers_.end() && readers->second == 1;
  }

  // Whether a rank's part of the sum is a run of what it adds to: with a split of the outermost dim that has
  // more than one index, by an axis whose splits are in order of rank.
  bool IsRun(const LocalNode& node) const {
    const Shape& whole = ValueOf(Global(node.inputs[0])).local;
    const Shape& part = ValueOf(Global(node.outputs[0])).local;
    int dim = 0;
    while (dim < whole.rank() && whole[dim] == part[dim]) ++dim;
    return node.axis == graph::Axis::kTp && whole.elements(0, dim) == 1;
  }

  // Pushed sums of two ranks whose one reader adds the other's part.
  void FindUnsummed() {
    if (!in_.profile->adds_part) return;
    for (size_t i = 0; i < in_.nodes->size(); ++i) {
      const LocalNode& node = NodeAt(static_cast<std::int32_t>(i));
      const bool scatters = node.collective == plan::Collective::kReduceScatter;
      const bool sums = scatters || node.collective == plan::Collective::kAllReduce;
      if (node.op != nullptr || !sums || node.reduction != graph::Reduction::kSum) continue;
      if (!in_.pushed.Has(node.axis) || in_.plan->mesh.size(node.axis) != 2) continue;
      const std::int32_t sum = node.outputs[0];
      if (!PassesOnce(node.inputs[0]) || !PassesOnce(sum) || (scatters && !IsRun(node))) continue;
      const std::int32_t reader = last_use_.at(Global(sum));
      const LocalNode& reads = NodeAt(reader);
      if (reads.op == nullptr) continue;
      const plan::LocalValue& value = ValueOf(Global(sum));
      const int input = in_.profile->adds_part(*reads.op, {value.local, value.dtype}, reads.attributes);
      if (input < 0 || reads.inputs[static_cast<size_t>(input)] != sum) continue;
      unsummed_[static_cast<std::int32_t>(i)] = reader;
      partial_.insert(Global(node.inputs[0]));
      parts_[reader].input = input;
      const bool next = reader == static_cast<std::int32_t>(i) + 1;
      parts_[reader].direct = in_.direct && !in_.in_lane && next;
    }
  }

  bool MadeHere(std::int32_t local) const { return made_here_.contains(Global(local)); }

  plan::BufferRef Ref(std::int32_t value) const {
    if (const auto it = aliases_.find(value); it != aliases_.end()) return it->second;
    if (const auto it = transient_.find(value); it != transient_.end()) return it->second.ref;
    const auto it = in_.storage->find(value);
    ENGINE_CHECK(it != in_.storage->end(), "{}: {} has no place", segment_.name, ValueOf(value).name);
    return it->second;
  }

  std::int64_t Bytes(std::int32_t value) const { return ValueOf(value).local_bytes(); }

  // The input whose bytes output 0 of this op may take over, or −1.
  std::int32_t InPlace(const LocalNode& node, std::int32_t i) const {
    if (node.op == nullptr || node.op->in_place_input < 0) return -1;
    const std::int32_t local = node.inputs[static_cast<size_t>(node.op->in_place_input)];
    const std::int32_t value = Global(local);
    if (std::count(node.inputs.begin(), node.inputs.end(), local) != 1 || !DiesAt(value, i)) return -1;
    if (Bytes(value) != Bytes(Global(node.outputs[0]))) return -1;
    const auto part = parts_.find(i);
    if (part != parts_.end() && part->second.direct && part->second.input == node.op->in_place_input) {
      return -1;  // the other rank reads there
    }
    const auto transient = transient_.find(value);
    if (transient != transient_.end() && !transient->second.ref.shard_axes.empty()) return -1;
    const bool mine = (transient != transient_.end() && !aliases_.contains(value)) ||
                      (in_.dying != nullptr && in_.dying->contains(value));
    return mine ? value : -1;
  }

  void Place(const LocalNode& node, std::int32_t i) {
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      const std::int32_t value = Global(node.outputs[k]);
      if (in_.storage->contains(value) || aliases_.contains(value)) continue;
      const bool beside = beside_.contains(value);
      std::int32_t donor = k == 0 ? InPlace(node, i) : -1;
      if (donor >= 0 && (partial_.contains(value) || (beside && Ref(donor).lane_stride == 0))) donor = -1;
      Transient place;
      if (donor >= 0) {
        place = {Ref(donor), -1};
        if (const auto it = transient_.find(donor); it != transient_.end()) {
          place.range = it->second.range;
          place.joint = it->second.joint;
          it->second.range = -1;  // handed over
        }
      } else if (beside) {
        place.range = joint_ranges_.Allocate(in_.plan->lanes * Bytes(value));
        place.joint = true;
        place.ref.offset = place.range;
        place.ref.in_lane = true;
        place.ref.lane_stride = Bytes(value);
      } else {
        place.range = ranges_.Allocate(Bytes(value));
        place.ref.offset = in_.transient_base + place.range;
        place.ref.in_lane = in_.in_lane;
      }
      place.ref.value = value;
      place.ref.elements = ValueOf(value).local.elements();
      place.ref.dtype = ValueOf(value).dtype;
      transient_[value] = place;
    }
  }

  // The sum lies where this rank's part of it does.
  void PlaceUnsummed(const LocalNode& node, std::int32_t i, plan::Instruction* instruction) {
    const std::int32_t value = Global(node.outputs[0]);
    Transient& donor = transient_.at(Global(node.inputs[0]));
    Transient place = donor;
    donor.range = -1;  // handed over
    place.ref.value = value;
    place.ref.elements = ValueOf(value).local.elements();
    if (node.collective == plan::Collective::kReduceScatter) {
      place.ref.shard_axes = plan::AxisSet::Of(node.axis);
      place.ref.shard_stride = place.ref.bytes();
    }
    transient_[value] = place;
    instruction->unsummed = true;
    instruction->direct = parts_.at(unsummed_.at(i)).direct;
  }

  // The scratch of the exchange is kept until its reader has run.
  void KeepPart(std::int32_t i, const plan::Instruction& exchange) {
    Part& part = parts_.at(unsummed_.at(i));
    part.range = exchange.scratch.offset - in_.transient_base;
    const plan::BufferRef& sum = exchange.outputs[0];
    part.ref = {.offset = exchange.scratch.offset,
                .elements = sum.elements,
                .dtype = sum.dtype,
                .in_lane = exchange.scratch.in_lane};
  }

  // by_exchange: beside computation, which may overwrite it when it has next waited for exchange.
  void Release(std::int32_t value, bool by_exchange) {
    const auto it = transient_.find(value);
    if (it == transient_.end() || it->second.range < 0) return;
    if (it->second.joint) {
      released_.emplace_back(it->second.range, blocks_);
    } else if (by_exchange) {
      exchanged_.push_back(it->second.range);
    } else {
      ranges_.Free(it->second.range);
    }
    it->second.range = -1;
  }

  // What lies side by side is free for others a while after its last use, so that lanes seldom wait until the
  // other, and what is made of both, have come as far; not before exchange that uses it is waited for.
  void FreeJoint() {
    constexpr std::int64_t kBlocks = 2;
    std::erase_if(released_, [&](const auto& released) {
      if (released.second + kBlocks > blocks_) return false;
      joint_ranges_.Free(released.first);
      return true;
    });
  }

  void Add(std::int32_t i) {
    const LocalNode& node = NodeAt(i);
    const bool exchanges = node.op == nullptr && node.collective != plan::Collective::kSlice && in_.in_lane;
    const bool waits = !exchanges && !joint_.contains(i) && !exchanged_.empty();
    if (waits) FreeExchanged();
    plan::Instruction instruction;
    instruction.name = node.name;
    instruction.op = node.op;
    instruction.kernel = node.op != nullptr ? std::string(node.op->name) : Name(node.collective);
    instruction.collective = node.collective;
    instruction.axis = node.axis;
    instruction.reduction = node.reduction;
    instruction.attributes = node.attributes;
    instruction.accumulate = node.accumulate;
    instruction.fresh = FirstSums(node);
    for (std::int32_t input : node.inputs) instruction.inputs.push_back(Ref(Global(input)));
    OverwriteFirst(node, &instruction);
    instruction.joint = joint_.contains(i);
    if (unsummed_.contains(i)) {
      PlaceUnsummed(node, i, &instruction);
    } else {
      Place(node, i);
    }
    for (std::int32_t output : node.outputs) instruction.outputs.push_back(Ref(Global(output)));
    if (node.op == nullptr) {
      instruction.group = plan::AxisSet::Of(node.axis);
      instruction.wire_bytes =
          plan::WireBytes(node.collective, instruction.inputs[0].bytes(), instruction.outputs[0].bytes(),
                          in_.plan->mesh.size(node.axis));
      const bool local = node.collective == plan::Collective::kSlice;
      instruction.push = !local && in_.pushed.Has(node.axis);
      instruction.stream = exchanges ? plan::kExchangeStream : plan::kComputeStream;
      ExchangeScratch(node, i, &instruction);
      if (exchanges) under_way_ = true;
    } else {
      WorkAndScratch(node, i, &instruction);
    }
    const auto part = parts_.find(i);
    if (part != parts_.end()) {
      instruction.part = part->second.ref;
      instruction.part_of = part->second.input;
      instruction.direct = part->second.direct;
      ranges_.Free(part->second.range);
    }
    OnlyOnce(node, &instruction);
    const double microbatches = static_cast<double>(instruction.joint ? in_.plan->lanes : 1);
    segment_.flops += instruction.work.flops / microbatches;
    segment_.product_flops += instruction.work.product_flops / microbatches;
    segment_.instructions.push_back(std::move(instruction));
    for (std::int32_t input : node.inputs) {
      if (DiesAt(Global(input), i)) Release(Global(input), exchanges);
    }
    for (std::int32_t output : node.outputs) {
      if (!last_use_.contains(Global(output)) && DiesAt(Global(output), i))
        Release(Global(output), exchanges);
    }
    if (under_way_ && !exchanges && !joint_.contains(i)) {
      under_way_ = false;
      ++blocks_;
      FreeJoint();
    }
  }

  void FreeExchanged() {
    for (std::int64_t range : exchanged_) ranges_.Free(range);
    exchanged_.clear();
  }

  // The outputs that are gradients of parameters to which nothing in this segment has added yet.
  std::uint32_t FirstSums(const LocalNode& node) {
    std::uint32_t first = 0;
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      const plan::LocalValue& value = ValueOf(Global(node.outputs[k]));
      if (value.kind != ValueKind::kAccumulator || value.parameter < 0) continue;
      if (summed_.insert(Global(node.outputs[k])).second) first |= 1U << k;
    }
    return first & node.accumulate;
  }

  // A microbatch's gradients that go on to a shard are sums of their own.
  void OverwriteFirst(const LocalNode& node, plan::Instruction* instruction) const {
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      const std::int32_t value = Global(node.outputs[k]);
      if (in_.in_turns == nullptr || !in_.in_turns->contains(value)) continue;
      instruction->accumulate &= ~(instruction->fresh & 1U << k);
      instruction->fresh &= ~(1U << k);
    }
  }

  // Of what a node's launch takes and makes.
  std::pair<std::vector<TensorType>, std::vector<TensorType>> TypesOf(std::int32_t i) const {
    const LocalNode& node = NodeAt(i);
    std::pair<std::vector<TensorType>, std::vector<TensorType>> types;
    for (std::int32_t v : node.inputs) {
      types.first.push_back({ValueOf(Global(v)).local, ValueOf(Global(v)).dtype});
      if (joint_.contains(i)) types.first.back().shape[0] *= in_.plan->lanes;
    }
    for (std::int32_t v : node.outputs)
      types.second.push_back({ValueOf(Global(v)).local, ValueOf(Global(v)).dtype});
    return types;
  }

  void WorkAndScratch(const LocalNode& node, std::int32_t i, plan::Instruction* instruction) {
    const auto [inputs, outputs] = TypesOf(i);
    instruction->work = node.op->work(inputs, outputs, node.attributes);
    if (in_.profile->slow) instruction->slow = in_.profile->slow(node.op->name, inputs, node.attributes);
    if (!in_.profile->scratch_bytes) return;
    if (instruction->joint) {
      const std::int64_t bytes = in_.profile->scratch_bytes(node.op->name, inputs, outputs, node.attributes);
      if (bytes > 0) instruction->scratch = {.offset = 0, .elements = bytes, .dtype = DType::kU8};
      return;
    }
    const std::int64_t range =
        TakeScratch(in_.profile->scratch_bytes(node.op->name, inputs, outputs, node.attributes), instruction);
    if (range >= 0) ranges_.Free(range);
  }

  void ExchangeScratch(const LocalNode& node, std::int32_t i, plan::Instruction* instruction) {
    if (!in_.profile->exchange_bytes) return;
    const plan::LocalValue& from = ValueOf(Global(node.inputs[0]));
    const plan::LocalValue& to = ValueOf(Global(node.outputs[0]));
    const std::int64_t range =
        TakeScratch(in_.profile->exchange_bytes(node.collective, node.reduction, {from.local, from.dtype},
                                                {to.local, to.dtype}, node.axis,
                                                in_.plan->mesh.size(node.axis), instruction->push),
                    instruction);
    if (range < 0) return;
    if (instruction->unsummed) {
      KeepPart(i, *instruction);
    } else if (instruction->stream == plan::kExchangeStream) {
      exchanged_.push_back(range);
    } else {
      ranges_.Free(range);
    }
  }

  // Returns the range, or −1 if there are no bytes.
  std::int64_t TakeScratch(std::int64_t bytes, plan::Instruction* instruction) {
    if (bytes == 0) return -1;
    const std::int64_t range = ranges_.Allocate(bytes);
    instruction->scratch = {
        .offset = in_.transient_base + range, .elements = bytes, .dtype = DType::kU8, .in_lane = in_.in_lane};
    return range;
  }

  // The loss is one number: where an axis repeats it, only the axis' first rank adds it in.
  void OnlyOnce(const LocalNode& node, plan::Instruction* instruction) const {
    for (std::int32_t output : node.outputs) {
      const plan::LocalValue& value = ValueOf(Global(output));
      if (value.kind != ValueKind::kAccumulator || value.parameter >= 0) continue;
      for (graph::Axis axis : graph::kAxes) {
        if (in_.plan->mesh.size(axis) > 1 && value.layout.At(axis).replicated()) {
          instruction->only_first = instruction->only_first | plan::AxisSet::Of(axis);
        }
      }
    }
  }

  const SegmentInputs& in_;
  plan::Segment segment_;
  plan::RangeAllocator ranges_;
  absl::flat_hash_map<std::int32_t, std::int32_t> last_use_;
  absl::flat_hash_map<std::int32_t, Transient> transient_;
  absl::flat_hash_map<std::int32_t, int> readers_;              // in this segment
  absl::flat_hash_set<std::int32_t> made_here_;                 // activations
  absl::flat_hash_map<std::int32_t, plan::BufferRef> aliases_;  // values made at another value's place
  absl::flat_hash_set<std::int32_t> summed_;                    // gradients of parameters
  struct Part {
    int input = -1;
    bool direct = false;
    plan::BufferRef ref;
    std::int64_t range = -1;
  };
  absl::flat_hash_map<std::int32_t, std::int32_t> unsummed_;  // readers, by node of the exchange
  absl::flat_hash_map<std::int32_t, Part> parts_;             // by reader
  absl::flat_hash_set<std::int32_t> partial_;                 // what they sum
  absl::flat_hash_set<std::int32_t> joint_;                   // nodes
  absl::flat_hash_set<std::int32_t> beside_;                  // transients that they read
  plan::RangeAllocator joint_ranges_;
  std::int64_t joint_scratch_ = 0;
  bool under_way_ = false;               // exchange, since what was computed last
  std::int64_t blocks_ = 0;              // of computation between exchanges, so far
  std::vector<std::int64_t> exchanged_;  // of ranges_: inputs and scratch of what is under way
  std::vector<std::pair<std::int64_t, std::int64_t>> released_;  // of joint_ranges_, and in which block
};

}  // namespace

plan::Segment BuildSegment(const SegmentInputs& inputs, std::string name, std::int32_t chunk,
                           TransientBytes* bytes, plan::BufferRef* kept) {
  return SegmentBuilder(inputs, std::move(name), chunk).Build(bytes, kept);
}

void ShiftJoint(std::int64_t offset, plan::Segment* segment) {
  for (plan::Instruction& instruction : segment->instructions) {
    for (auto* refs : {&instruction.inputs, &instruction.outputs}) {
      for (plan::BufferRef& ref : *refs) {
        if (ref.in_lane && ref.lane_stride > 0) ref.offset += offset;
      }
    }
    if (instruction.joint && !instruction.flat) instruction.scratch.offset += offset;
  }
}

}  // namespace engine::compile
