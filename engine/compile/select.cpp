#include "engine/compile/select.h"

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <utility>
#include <variant>

namespace engine::compile {
namespace {

using graph::TensorType;
using graph::ValueKind;

class Selector {
 public:
  Selector(const SelectInputs& inputs, std::string name, std::int32_t chunk) : in_(inputs) {
    segment_.name = std::move(name);
    segment_.chunk = chunk;
    if (in_.summed != nullptr) summed_ = *in_.summed;
  }

  DraftSegment Run() {
    CountUses();
    FindAliases();
    FindLeftSums();
    for (size_t i = 0; i < in_.nodes->size(); ++i) Add(i);
    return std::move(segment_);
  }

 private:
  // The kernel that adds the other rank's term of a sum, and whether it fetches that itself.
  struct LeftSum {
    size_t reader = 0;
    int input = -1;
    bool direct = false;
  };

  const LocalNode& NodeAt(size_t i) const { return in_.graph->nodes[static_cast<size_t>((*in_.nodes)[i])]; }
  const plan::LocalValue& ValueOf(std::int32_t plan_value) const {
    return in_.plan->values[static_cast<size_t>(plan_value)];
  }
  std::int32_t Global(std::int32_t local) const { return in_.base + local; }
  std::int64_t Bytes(std::int32_t value) const { return ValueOf(value).local_bytes(); }
  bool MadeHere(std::int32_t local) const { return made_here_.contains(Global(local)); }

  void CountUses() {
    for (size_t i = 0; i < in_.nodes->size(); ++i) {
      for (std::int32_t input : NodeAt(i).inputs) {
        last_reader_[Global(input)] = i;
        ++readers_[Global(input)];
      }
      for (std::int32_t output : NodeAt(i).outputs) {
        if (in_.graph->values[static_cast<size_t>(output)].kind == ValueKind::kActivation)
          made_here_.insert(Global(output));
      }
    }
  }

  // A transient that an op turns in place into a value with a place of its own is made there to begin with.
  // Not where slots' values die: the place may be another's until then.
  void FindAliases() {
    if (in_.values_die) return;
    for (size_t i = 0; i < in_.nodes->size(); ++i) {
      const LocalNode& node = NodeAt(i);
      if (node.op == nullptr || !MadeHere(node.outputs[0]) || node.op->in_place_input < 0) continue;
      const auto place = in_.storage->find(Global(node.outputs[0]));
      const std::int32_t local = node.inputs[static_cast<size_t>(node.op->in_place_input)];
      const std::int32_t value = Global(local);
      if (place == in_.storage->end() || !place->second.in_slot) continue;
      if (in_.storage->contains(value) || !MadeHere(local)) continue;
      if (readers_[value] != 1 || value == in_.keep || Bytes(value) != Bytes(Global(node.outputs[0])))
        continue;
      segment_.made_at[value] = Global(node.outputs[0]);
    }
  }

  // Whether the value lives from the instruction that makes it to one that reads it once, in bytes of its
  // own.
  bool PassesOnce(std::int32_t local) const {
    const std::int32_t value = Global(local);
    const auto readers = readers_.find(value);
    return MadeHere(local) && !in_.storage->contains(value) && !segment_.made_at.contains(value) &&
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

  static bool IsSum(const LocalNode& node) {
    const bool sums = node.collective == plan::Collective::kReduceScatter ||
                      node.collective == plan::Collective::kAllReduce;
    return sums && node.reduction == graph::Reduction::kSum;
  }
  // Whether every exchange of so many ranks adds up in order of rank.
  bool HasOneOrder(std::int64_t members) const {
    return in_.profile->ordered_ranks == 0 || members <= in_.profile->ordered_ranks;
  }

  // Pushed sums of two ranks whose one reader adds the other's term.
  void FindLeftSums() {
    if (!in_.profile->adds_part || in_.addition <= plan::Addition::kByExchange) return;
    for (size_t i = 0; i < in_.nodes->size(); ++i) {
      const LocalNode& node = NodeAt(i);
      const bool scatters = node.collective == plan::Collective::kReduceScatter;
      if (node.op != nullptr || !IsSum(node)) continue;
      if (!in_.pushed.Has(node.axis) || in_.plan->mesh.size(node.axis) != 2) continue;
      const std::int32_t sum = node.outputs[0];
      if (!PassesOnce(node.inputs[0]) || !PassesOnce(sum) || (scatters && !IsRun(node))) continue;
      const size_t reader = last_reader_.at(Global(sum));
      const LocalNode& reads = NodeAt(reader);
      if (reads.op == nullptr) continue;
      const plan::LocalValue& value = ValueOf(Global(sum));
      const int input = in_.profile->adds_part(*reads.op, {value.local, value.dtype}, reads.attributes);
      if (input < 0 || reads.inputs[static_cast<size_t>(input)] != sum) continue;
      const bool direct = in_.addition == plan::Addition::kByDirectReader && reader == i + 1;
      left_sums_[i] = {.reader = reader, .input = input, .direct = direct};
      terms_[reader] = i;
    }
  }

  void Add(size_t i) {
    const LocalNode& node = NodeAt(i);
    Draft draft;
    plan::Instruction& instruction = draft.instruction;
    instruction.name = node.name;
    instruction.component = node.component;
    for (std::int32_t input : node.inputs) instruction.inputs.push_back(Unplaced(*in_.plan, Global(input)));
    for (std::int32_t output : node.outputs)
      instruction.outputs.push_back(Unplaced(*in_.plan, Global(output)));
    if (node.op != nullptr) {
      AddKernel(node, i, &draft);
    } else {
      AddConversion(node, i, &draft);
    }
    segment_.drafts.push_back(std::move(draft));
  }

  void AddKernel(const LocalNode& node, size_t i, Draft* draft) {
    const auto [inputs, outputs] = TypesOf(draft->instruction);
    plan::Kernel kernel{.name = std::string(node.op->name),
                        .op = node.op,
                        .attributes = node.attributes,
                        .accumulate = node.accumulate,
                        .fresh = FirstSums(node),
                        .only_first = OnlyOnce(node),
                        .work = node.op->work(inputs, outputs, node.attributes)};
    OverwriteFirst(node, &kernel);
    if (in_.profile->slow) kernel.slow = in_.profile->slow(node.op->name, inputs, node.attributes);
    if (in_.profile->scratch_bytes)
      draft->scratch_bytes = in_.profile->scratch_bytes(node.op->name, inputs, outputs, node.attributes);
    if (const auto term = terms_.find(i); term != terms_.end()) {
      const LeftSum& sum = left_sums_.at(term->second);
      kernel.adds = {.input = sum.input, .direct = sum.direct};
    }
    segment_.flops += kernel.work.flops;
    segment_.product_flops += kernel.work.product_flops;
    draft->instruction.what = std::move(kernel);
  }

  void AddConversion(const LocalNode& node, size_t i, Draft* draft) {
    plan::Instruction& instruction = draft->instruction;
    const plan::LocalValue& from = ValueOf(Global(node.inputs[0]));
    const plan::LocalValue& to = ValueOf(Global(node.outputs[0]));
    const std::int64_t members = in_.plan->mesh.size(node.axis);
    plan::Conversion conversion;
    conversion.collective = node.collective;
    conversion.axis = node.axis;
    conversion.reduction = node.reduction;
    conversion.wire_bytes = plan::WireBytes(node.collective, from.local_bytes(), to.local_bytes(), members);
    conversion.push = node.collective != plan::Collective::kSlice && in_.pushed.Has(node.axis);
    if (const auto left = left_sums_.find(i); left != left_sums_.end()) {
      conversion.addition = left->second.direct ? plan::Addition::kByDirectReader : plan::Addition::kByReader;
    } else if (IsSum(node) && in_.addition == plan::Addition::kInOrder && !HasOneOrder(members)) {
      conversion.addition = plan::Addition::kInOrder;
    }
    instruction.what = conversion;
    if (!in_.profile->exchange_bytes) return;
    draft->scratch_bytes =
        in_.profile->exchange_bytes(conversion, {from.local, from.dtype}, {to.local, to.dtype}, members);
  }

  // Of what a launch takes and makes.
  std::pair<std::vector<TensorType>, std::vector<TensorType>> TypesOf(
      const plan::Instruction& instruction) const {
    std::pair<std::vector<TensorType>, std::vector<TensorType>> types;
    for (const plan::BufferRef& input : instruction.inputs)
      types.first.push_back({ValueOf(input.value).local, input.dtype});
    for (const plan::BufferRef& output : instruction.outputs)
      types.second.push_back({ValueOf(output.value).local, output.dtype});
    return types;
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
  void OverwriteFirst(const LocalNode& node, plan::Kernel* kernel) const {
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      const std::int32_t value = Global(node.outputs[k]);
      if (in_.in_turns == nullptr || !in_.in_turns->contains(value)) continue;
      kernel->accumulate &= ~(kernel->fresh & 1U << k);
      kernel->fresh &= ~(1U << k);
    }
  }

  // The loss is one number: where an axis repeats it, only the axis' first rank adds it in.
  plan::AxisSet OnlyOnce(const LocalNode& node) const {
    plan::AxisSet only_first;
    for (std::int32_t output : node.outputs) {
      const plan::LocalValue& value = ValueOf(Global(output));
      if (value.kind != ValueKind::kAccumulator || value.parameter >= 0) continue;
      for (graph::Axis axis : graph::kAxes) {
        if (in_.plan->mesh.size(axis) > 1 && value.layout.At(axis).replicated())
          only_first = only_first | plan::AxisSet::Of(axis);
      }
    }
    return only_first;
  }

  const SelectInputs& in_;
  DraftSegment segment_;
  absl::flat_hash_map<std::int32_t, size_t> last_reader_;  // node, by value
  absl::flat_hash_map<std::int32_t, int> readers_;         // in this segment
  absl::flat_hash_set<std::int32_t> made_here_;            // activations
  absl::flat_hash_set<std::int32_t> summed_;               // gradients of parameters
  absl::flat_hash_map<size_t, LeftSum> left_sums_;         // by node of the sum
  absl::flat_hash_map<size_t, size_t> terms_;              // node of the sum, by node of its reader
};

}  // namespace

DraftSegment Select(const SelectInputs& inputs, std::string name, std::int32_t chunk) {
  return Selector(inputs, std::move(name), chunk).Run();
}

}  // namespace engine::compile
