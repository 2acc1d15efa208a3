#include "engine/plan/segment.h"

#include <absl/container/flat_hash_set.h>

#include <algorithm>

namespace engine::plan {
namespace {

using graph::TensorType;
using graph::ValueKind;

class SegmentBuilder {
 public:
  SegmentBuilder(const SegmentInputs& inputs, std::string name, std::int32_t chunk) : in_(inputs) {
    segment_.name = std::move(name);
    segment_.chunk = chunk;
  }

  Segment Build(std::int64_t* transient_bytes, BufferRef* kept) {
    FindLastUses();
    FindAliases();
    FindUnsummed();
    for (size_t i = 0; i < in_.nodes->size(); ++i) Add(static_cast<std::int32_t>(i));
    *transient_bytes = ranges_.peak();
    if (kept != nullptr && in_.keep >= 0) *kept = transient_.at(in_.keep).ref;
    return std::move(segment_);
  }

 private:
  struct Transient {
    BufferRef ref;
    std::int64_t range = -1;  // offset in ranges_; −1: bytes borrowed from a slot
  };

  const LocalNode& NodeAt(std::int32_t i) const {
    return in_.graph->nodes[static_cast<size_t>((*in_.nodes)[static_cast<size_t>(i)])];
  }
  const LocalValue& ValueOf(std::int32_t plan_value) const {
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
      BufferRef ref = place->second;
      ref.value = value;
      aliases_[value] = ref;
    }
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
    return node.axis == Axis::kTp && whole.elements(0, dim) == 1;
  }

  // Pushed sums of two ranks whose one reader adds the other's part.
  void FindUnsummed() {
    if (!in_.profile->adds_part) return;
    for (size_t i = 0; i < in_.nodes->size(); ++i) {
      const LocalNode& node = NodeAt(static_cast<std::int32_t>(i));
      const bool scatters = node.collective == Collective::kReduceScatter;
      const bool sums = scatters || node.collective == Collective::kAllReduce;
      if (node.op != nullptr || !sums || node.reduction != graph::Reduction::kSum) continue;
      if (!in_.pushed.Has(node.axis) || in_.plan->mesh.size(node.axis) != 2) continue;
      const std::int32_t sum = node.outputs[0];
      if (!PassesOnce(node.inputs[0]) || !PassesOnce(sum) || (scatters && !IsRun(node))) continue;
      const std::int32_t reader = last_use_.at(Global(sum));
      const LocalNode& reads = NodeAt(reader);
      if (reads.op == nullptr) continue;
      const LocalValue& value = ValueOf(Global(sum));
      const int input = in_.profile->adds_part(*reads.op, {value.local, value.dtype}, reads.attributes);
      if (input < 0 || reads.inputs[static_cast<size_t>(input)] != sum) continue;
      unsummed_[static_cast<std::int32_t>(i)] = reader;
      parts_[reader].input = input;
    }
  }

  bool MadeHere(std::int32_t local) const { return made_here_.contains(Global(local)); }

  BufferRef Ref(std::int32_t value) const {
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
      const std::int32_t donor = k == 0 ? InPlace(node, i) : -1;
      Transient place;
      if (donor >= 0) {
        place = {Ref(donor), -1};
        if (const auto it = transient_.find(donor); it != transient_.end()) {
          place.range = it->second.range;
          it->second.range = -1;  // handed over
        }
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
  void PlaceUnsummed(const LocalNode& node, Instruction* instruction) {
    const std::int32_t value = Global(node.outputs[0]);
    Transient& donor = transient_.at(Global(node.inputs[0]));
    Transient place = donor;
    donor.range = -1;  // handed over
    place.ref.value = value;
    place.ref.elements = ValueOf(value).local.elements();
    if (node.collective == Collective::kReduceScatter) {
      place.ref.shard_axes = AxisSet::Of(node.axis);
      place.ref.shard_stride = place.ref.bytes();
    }
    transient_[value] = place;
    instruction->unsummed = true;
  }

  // The scratch of the exchange is kept until its reader has run.
  void KeepPart(std::int32_t i, const Instruction& exchange) {
    Part& part = parts_.at(unsummed_.at(i));
    part.range = ranges_.Allocate(exchange.scratch.elements);
    ENGINE_CHECK(in_.transient_base + part.range == exchange.scratch.offset, "{}: the scratch has moved",
                 exchange.name);
    const BufferRef& sum = exchange.outputs[0];
    part.ref = {.offset = exchange.scratch.offset,
                .elements = sum.elements,
                .dtype = sum.dtype,
                .in_lane = exchange.scratch.in_lane};
  }

  void Release(std::int32_t value) {
    const auto it = transient_.find(value);
    if (it == transient_.end() || it->second.range < 0) return;
    ranges_.Free(it->second.range);
    it->second.range = -1;
  }

  void Add(std::int32_t i) {
    const LocalNode& node = NodeAt(i);
    Instruction instruction;
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
    if (unsummed_.contains(i)) {
      PlaceUnsummed(node, &instruction);
    } else {
      Place(node, i);
    }
    for (std::int32_t output : node.outputs) instruction.outputs.push_back(Ref(Global(output)));
    if (node.op == nullptr) {
      instruction.group = AxisSet::Of(node.axis);
      instruction.wire_bytes = WireBytes(node.collective, instruction.inputs[0].bytes(),
                                         instruction.outputs[0].bytes(), in_.plan->mesh.size(node.axis));
      const bool local = node.collective == Collective::kSlice;
      instruction.push = !local && in_.pushed.Has(node.axis);
      instruction.stream = !local && in_.in_lane ? kExchangeStream : kComputeStream;
      ExchangeScratch(node, &instruction);
      if (instruction.unsummed) KeepPart(i, instruction);
    } else {
      CostAndScratch(node, &instruction);
    }
    const auto part = parts_.find(i);
    if (part != parts_.end()) {
      instruction.part = part->second.ref;
      instruction.part_of = part->second.input;
      ranges_.Free(part->second.range);
    }
    OnlyOnce(node, &instruction);
    segment_.flops += instruction.flops;
    segment_.instructions.push_back(std::move(instruction));
    for (std::int32_t input : node.inputs) {
      if (DiesAt(Global(input), i)) Release(Global(input));
    }
    for (std::int32_t output : node.outputs) {
      if (!last_use_.contains(Global(output)) && DiesAt(Global(output), i)) Release(Global(output));
    }
  }

  // The outputs that are gradients of parameters to which nothing in this segment has added yet.
  std::uint32_t FirstSums(const LocalNode& node) {
    std::uint32_t first = 0;
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      const LocalValue& value = ValueOf(Global(node.outputs[k]));
      if (value.kind != ValueKind::kAccumulator || value.parameter < 0) continue;
      if (summed_.insert(Global(node.outputs[k])).second) first |= 1U << k;
    }
    return first & node.accumulate;
  }

  // A microbatch's gradients that go on to a shard are sums of their own.
  void OverwriteFirst(const LocalNode& node, Instruction* instruction) const {
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      const std::int32_t value = Global(node.outputs[k]);
      if (in_.in_turns == nullptr || !in_.in_turns->contains(value)) continue;
      instruction->accumulate &= ~(instruction->fresh & 1U << k);
      instruction->fresh &= ~(1U << k);
    }
  }

  void CostAndScratch(const LocalNode& node, Instruction* instruction) {
    std::vector<TensorType> inputs;
    std::vector<TensorType> outputs;
    for (std::int32_t v : node.inputs) inputs.push_back({ValueOf(Global(v)).local, ValueOf(Global(v)).dtype});
    for (std::int32_t v : node.outputs)
      outputs.push_back({ValueOf(Global(v)).local, ValueOf(Global(v)).dtype});
    instruction->flops = node.op->cost(inputs, outputs, node.attributes).flops;
    if (!in_.profile->scratch_bytes) return;
    TakeScratch(in_.profile->scratch_bytes(node.op->name, inputs, outputs, node.attributes), instruction);
  }

  void ExchangeScratch(const LocalNode& node, Instruction* instruction) {
    if (!in_.profile->exchange_bytes) return;
    const LocalValue& from = ValueOf(Global(node.inputs[0]));
    const LocalValue& to = ValueOf(Global(node.outputs[0]));
    TakeScratch(in_.profile->exchange_bytes(node.collective, node.reduction, {from.local, from.dtype},
                                            {to.local, to.dtype}, node.axis, in_.plan->mesh.size(node.axis),
                                            instruction->push),
                instruction);
  }

  // Bytes that are free again when the instruction has run.
  void TakeScratch(std::int64_t bytes, Instruction* instruction) {
    if (bytes == 0) return;
    const std::int64_t range = ranges_.Allocate(bytes);
    instruction->scratch = {
        .offset = in_.transient_base + range, .elements = bytes, .dtype = DType::kU8, .in_lane = in_.in_lane};
    ranges_.Free(range);
  }

  // The loss is one number: where an axis repeats it, only the axis' first rank adds it in.
  void OnlyOnce(const LocalNode& node, Instruction* instruction) const {
    for (std::int32_t output : node.outputs) {
      const LocalValue& value = ValueOf(Global(output));
      if (value.kind != ValueKind::kAccumulator || value.parameter >= 0) continue;
      for (Axis axis : graph::kAxes) {
        if (in_.plan->mesh.size(axis) > 1 && value.layout.At(axis).replicated()) {
          instruction->only_first = instruction->only_first | AxisSet::Of(axis);
        }
      }
    }
  }

  const SegmentInputs& in_;
  Segment segment_;
  RangeAllocator ranges_;
  absl::flat_hash_map<std::int32_t, std::int32_t> last_use_;
  absl::flat_hash_map<std::int32_t, Transient> transient_;
  absl::flat_hash_map<std::int32_t, int> readers_;        // in this segment
  absl::flat_hash_set<std::int32_t> made_here_;           // activations
  absl::flat_hash_map<std::int32_t, BufferRef> aliases_;  // values made at another value's place
  absl::flat_hash_set<std::int32_t> summed_;              // gradients of parameters
  struct Part {
    int input = -1;
    BufferRef ref;
    std::int64_t range = -1;
  };
  absl::flat_hash_map<std::int32_t, std::int32_t> unsummed_;  // readers, by node of the exchange
  absl::flat_hash_map<std::int32_t, Part> parts_;             // by reader
};

}  // namespace

Segment BuildSegment(const SegmentInputs& inputs, std::string name, std::int32_t chunk,
                     std::int64_t* transient_bytes, BufferRef* kept) {
  return SegmentBuilder(inputs, std::move(name), chunk).Build(transient_bytes, kept);
}

}  // namespace engine::plan
