#include "engine/compile/signature_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "engine/base/status.h"
#include "engine/compile/conversion.h"
#include "engine/compile/pins.h"

namespace engine::compile {
namespace {

using graph::Placement;
using graph::Signature;
using graph::ValueId;
using graph::ValueKind;

double WholeBytes(const graph::TensorType& type) {
  return static_cast<double>(type.shape.elements()) * static_cast<double>(SizeOf(type.dtype));
}

// What one signature of one node costs along one axis; or that it is not lawful there.
class SignatureCost {
 public:
  // Bytes on the wire, and conversions, which decide among equals.
  using Price = std::pair<double, int>;

  // `detours`: inputs may take several collectives.
  SignatureCost(const graph::Graph& graph, const PlacementOptions& options, const LocalGraphBuilder& local,
                graph::Axis axis, bool detours)
      : graph_(graph),
        options_(options),
        local_(local),
        axis_(axis),
        detours_(detours),
        size_(options.mesh.size(axis)) {}

  // nullopt: not lawful. `layouts`: of the node's inputs.
  std::optional<Price> Of(const graph::Node& node, const Signature& signature,
                          const std::vector<plan::Layout>& layouts) {
    price_ = {0.0, 0};
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (!AddInput(node.inputs[i], signature.inputs[i], layouts[i])) return std::nullopt;
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (!AddOutput(node.outputs[i], signature.outputs[i])) return std::nullopt;
    }
    return price_;
  }

 private:
  // These return whether it is lawful.
  bool AddConversion(const graph::TensorType& type, Placement from, Placement to) {
    const std::optional<double> bytes = ConversionBytes(from, to, WholeBytes(type), size_);
    if (!bytes) return false;
    price_.first += *bytes;
    price_.second += from == to ? 0 : 1;
    return true;
  }

  bool AddInput(ValueId input, Placement want, const plan::Layout& layout) {
    const graph::Value& value = graph_.value(input);
    if (value.kind == ValueKind::kParameter) return ParameterAccepts(input, want);
    if (value.kind == ValueKind::kState && local_.Undecided(input, axis_))
      return StateAccepts(value.type, want);
    if (!MaySplit(value.type, want)) return false;
    const Placement have = layout.At(axis_);
    if (have == want) return true;
    if (CanConvert(layout, value.type.shape, axis_, want, options_.mesh))
      return AddConversion(value.type, have, want);
    if (!detours_) return false;
    const std::optional<double> bytes =
        DetourBytes(layout, value.type.shape, axis_, want, WholeBytes(value.type), options_.mesh);
    if (!bytes) return false;
    price_.first += *bytes;
    price_.second += 1;
    return true;
  }

  bool AddOutput(ValueId output, Placement made) {
    const graph::Value& value = graph_.value(output);
    if (value.kind == ValueKind::kAccumulator) return AccumulatorAccepts(output, made);
    if (value.kind == ValueKind::kState && !local_.Undecided(output, axis_))
      return local_.LayoutOf(output).At(axis_) == made;
    if (value.type.dims.HasSlots()) return true;  // never converted
    if (made.split() && value.type.shape[made.dim] % size_ != 0) return false;
    if (const std::optional<Placement> pin = PinOf(value, axis_, options_)) {
      return AddConversion(value.type, made, *pin);
    }
    // Heads, which the next op that splits the sequence will exchange back.
    if (axis_ == graph::Axis::kCp && made.split() && made != SequenceSplit(value.type)) {
      return AddConversion(value.type, made, SequenceSplit(value.type));
    }
    // Somebody will have to sum it: a reduce-scatter at least.
    return !made.partial() || AddConversion(value.type, made, Placement::S(0));
  }

  bool MaySplit(const graph::TensorType& type, Placement placement) const {
    return !placement.split() || graph::RuleOf(axis_).activations.Has(type.meaning(placement.dim));
  }

  bool ParameterAccepts(ValueId parameter, Placement want) const {
    if (!local_.Undecided(parameter, axis_)) return local_.LayoutOf(parameter).At(axis_) == want;
    const graph::TensorType& type = graph_.value(parameter).type;
    return !want.split() ||
           (graph::RuleOf(axis_).parameters.Has(type.meaning(want.dim)) && type.shape[want.dim] % size_ == 0);
  }

  // A state is never a sum, and split as activations are.
  bool StateAccepts(const graph::TensorType& type, Placement want) const {
    if (want.partial()) return false;
    return !want.split() || (MaySplit(type, want) && type.shape[want.dim] % size_ == 0);
  }

  // A gradient accumulator has its parameter's split; where the parameter is whole it is whole or a partial sum.
  bool AccumulatorAccepts(ValueId accumulator, Placement output) const {
    if (!local_.Undecided(accumulator, axis_)) return local_.LayoutOf(accumulator).At(axis_) == output;
    const ValueId parameter = graph_.value(accumulator).gradient_of;
    if (parameter == graph::kNoValue) return !output.split();
    const Placement split = local_.LayoutOf(parameter).At(axis_);
    return split.split() ? output == split : !output.split();
  }

  const graph::Graph& graph_;
  const PlacementOptions& options_;
  const LocalGraphBuilder& local_;
  const graph::Axis axis_;
  const bool detours_;
  const std::int64_t size_;  // of the axis
  Price price_ = {0.0, 0};
};

absl::Status NoLawful(const graph::Graph& graph, const graph::Node& node, graph::Axis axis,
                      const std::vector<plan::Layout>& layouts, const plan::Mesh& mesh) {
  std::string inputs;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    inputs +=
        fmt::format("{}{} [{}]", i > 0 ? ", " : "", graph.value(node.inputs[i]).name, layouts[i].ToString());
  }
  return InvalidArgument("{} ({}) of {} has no lawful placement along {} = {}", node.name, node.op->name,
                         inputs, graph::kAxisNames[static_cast<size_t>(axis)], mesh.size(axis));
}

}  // namespace

const SignatureChooser::Lawful& SignatureChooser::LawfulFor(const graph::Node& node) {
  std::vector<std::unique_ptr<Lawful>>& known = lawful_[node.op];
  for (const std::unique_ptr<Lawful>& lawful : known) {
    const auto same = [&](const graph::TensorType& type, ValueId input) {
      return type == graph_.value(input).type && type.dims == graph_.value(input).type.dims;
    };
    if (std::equal(lawful->types.begin(), lawful->types.end(), node.inputs.begin(), node.inputs.end(),
                   same) &&
        lawful->attributes->items() == node.attributes.items()) {
      return *lawful;
    }
  }
  Lawful& lawful = *known.emplace_back(std::make_unique<Lawful>());
  for (ValueId input : node.inputs) lawful.types.push_back(graph_.value(input).type);
  lawful.attributes = &node.attributes;
  for (graph::Axis axis : graph::kAxes) {
    if (options_.mesh.size(axis) == 1) continue;
    lawful.lists[static_cast<size_t>(axis)] =
        node.op->signatures(lawful.types, node.attributes, graph::RuleOf(axis));
  }
  return lawful;
}

const Signature* SignatureChooser::Cheapest(const graph::Node& node, graph::Axis axis,
                                            const std::vector<Signature>& lawful,
                                            const std::vector<plan::Layout>& layouts, bool detours) const {
  SignatureCost cost_of(graph_, options_, local_, axis, detours);
  const Signature* best = nullptr;
  SignatureCost::Price best_cost;
  for (const Signature& signature : lawful) {
    const std::optional<SignatureCost::Price> cost = cost_of.Of(node, signature, layouts);
    if (!cost) continue;
    // Along cp, what comes later in the op's order must save a tenth: attention on whole sequences of some heads runs
    // faster than on slices of the sequence.
    const bool cheaper = axis == graph::Axis::kCp ? cost->first < 0.9 * best_cost.first : *cost < best_cost;
    const bool better = best == nullptr || (best->fallback && !signature.fallback) ||
                        (best->fallback == signature.fallback && cheaper);
    if (!better) continue;
    best = &signature;
    best_cost = *cost;
  }
  return best;
}

absl::StatusOr<SignatureChoice> SignatureChooser::Choose(const graph::Node& node,
                                                         std::vector<plan::Layout>* layouts) {
  SignatureChoice choice = {nullptr, nullptr, nullptr, nullptr};
  const Lawful& lawful = LawfulFor(node);
  for (graph::Axis axis : graph::kAxes) {
    if (options_.mesh.size(axis) == 1) continue;
    const auto at = static_cast<size_t>(axis);
    choice[at] = Cheapest(node, axis, lawful.lists[at], *layouts, /*detours=*/false);
    if (choice[at] == nullptr)
      choice[at] = Cheapest(node, axis, lawful.lists[at], *layouts, /*detours=*/true);
    if (choice[at] == nullptr) return NoLawful(graph_, node, axis, *layouts, options_.mesh);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      plan::Layout& layout = (*layouts)[i];
      if (layout.Set(axis, choice[at]->inputs[i])) continue;
      const std::optional<plan::Layout> after = WithPlacement(layout, graph_.value(node.inputs[i]).type.shape,
                                                              axis, choice[at]->inputs[i], options_.mesh);
      if (!after) return Internal("{}: unlawful nesting", node.name);
      layout = *after;
    }
  }
  return choice;
}

}  // namespace engine::compile
