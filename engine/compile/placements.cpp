#include "engine/compile/placements.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/base/status.h"
#include "engine/compile/conversion.h"
#include "engine/compile/local_graph_builder.h"
#include "engine/compile/pins.h"
#include "engine/compile/signature_choice.h"

namespace engine::compile {
namespace {

using graph::Axis;
using graph::kAxes;
using graph::Node;
using graph::Placement;
using graph::ValueId;
using graph::ValueKind;

absl::Status NoLawful(const graph::Value& value, Axis axis, const plan::Mesh& mesh) {
  return InvalidArgument("{} {} has no lawful placement along {} = {}", value.name,
                         value.type.shape.ToString(), graph::kAxisNames[static_cast<size_t>(axis)],
                         mesh.size(axis));
}

// Samples are split along dp and ep, the sequence along cp: each the first dim that means so; where there is none, the
// input is whole along the axis.
absl::StatusOr<plan::Layout> InputLayout(const graph::Value& value, const plan::Mesh& mesh) {
  plan::Layout layout(value.type.dims);
  const auto split = [&](Axis axis, bool (*wanted)(graph::Dim)) -> absl::Status {
    const auto found = std::find_if(value.type.dims.begin(), value.type.dims.end(), wanted);
    if (mesh.size(axis) == 1 || found == value.type.dims.end()) return absl::OkStatus();
    const int dim = static_cast<int>(found - value.type.dims.begin());
    if (layout.Set(axis, Placement::S(dim)) && layout.Divides(value.type.shape, mesh))
      return absl::OkStatus();
    return NoLawful(value, axis, mesh);
  };
  const auto samples = [](graph::Dim dim) { return dim == graph::Dim::kSample; };
  RETURN_IF_ERROR(split(Axis::kDp, samples));
  RETURN_IF_ERROR(split(Axis::kEp, samples));
  RETURN_IF_ERROR(split(Axis::kCp, graph::IsSequence));
  return layout;
}

// What the chosen signatures make of output `output` along an axis: whole where nothing had to be chosen.
Placement MadeAlong(Axis axis, const SignatureChoice& choice, size_t output) {
  const graph::Signature* signature = choice[static_cast<size_t>(axis)];
  return signature == nullptr ? Placement::R() : signature->outputs[output];
}

// Goes through the logical graph in its order and puts each node into the local one: with the signatures that the
// chooser takes, behind the conversions of its inputs that the converter emits.
class Placer {
 public:
  Placer(const graph::Graph& graph, const PlacementOptions& options, DecidedLayouts* decided)
      : graph_(graph),
        options_(options),
        decided_(*decided),
        local_(graph),
        chooser_(graph, options, local_),
        converter_(&local_, options.mesh) {}

  absl::StatusOr<LocalGraph> Run() {
    for (size_t id = 0; id < graph_.values().size(); ++id) {
      RETURN_IF_ERROR(AddLeaf(static_cast<ValueId>(id)));
    }
    for (const Node& node : graph_.nodes()) RETURN_IF_ERROR(Place(node));
    for (size_t id = 0; id < graph_.values().size(); ++id) {
      if (LiesInOnePlace(graph_.values()[id].kind) && !local_.Undecided(static_cast<ValueId>(id), Axis::kTp))
        decided_.try_emplace(graph_.values()[id].name, local_.LayoutOf(static_cast<ValueId>(id)));
    }
    return std::move(local_).Finish(options_.mesh);
  }

 private:
  static bool LiesInOnePlace(ValueKind kind) {
    return kind == ValueKind::kParameter || kind == ValueKind::kState;
  }

  absl::Status AddLeaf(ValueId id) {
    const graph::Value& value = graph_.value(id);
    if (value.kind == ValueKind::kActivation) return absl::OkStatus();
    plan::Layout layout(value.type.dims);
    if (value.kind == ValueKind::kInput) {
      ASSIGN_OR_RETURN(layout, InputLayout(value, options_.mesh));
    }
    local_.AddCanonical(value, layout, value.kind, id);
    if (!LiesInOnePlace(value.kind)) return absl::OkStatus();
    if (const auto known = decided_.find(value.name); known != decided_.end()) {
      for (Axis axis : kAxes) local_.Decide(id, axis, known->second.At(axis));
    }
    return absl::OkStatus();
  }

  absl::Status Place(const Node& node) {
    std::vector<plan::Layout> layouts;
    for (ValueId input : node.inputs) layouts.push_back(local_.LayoutOf(input));
    ASSIGN_OR_RETURN(const SignatureChoice choice, chooser_.Choose(node, &layouts));
    LocalNode local{.op = node.op,
                    .collective = plan::Collective::kNone,
                    .axis = Axis::kTp,
                    .reduction = graph::Reduction::kSum,
                    .name = node.name,
                    .inputs = {},
                    .outputs = {},
                    .attributes = node.attributes,
                    .accumulate = 0,
                    .phase = node.phase,
                    .unit = node.unit,
                    .component = node.component};
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId input = node.inputs[i];
      std::int32_t value = local_.canonical(input);
      const ValueKind kind = graph_.value(input).kind;
      if (kind == ValueKind::kParameter || kind == ValueKind::kState) {
        for (Axis axis : kAxes) local_.Decide(input, axis, layouts[i].At(axis));
      }
      if (kind != ValueKind::kParameter) {
        value = converter_.Convert(value, layouts[i], node, /*share=*/true);
      }
      local.inputs.push_back(value);
    }
    return PlaceOutputs(node, choice, std::move(local));
  }

  absl::Status PlaceOutputs(const Node& node, const SignatureChoice& choice, LocalNode local) {
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const ValueId output = node.outputs[i];
      const graph::Value& value = graph_.value(output);
      if (value.kind == ValueKind::kAccumulator) {
        for (Axis axis : kAxes) local_.Decide(output, axis, MadeAlong(axis, choice, i));
        local.accumulate |= 1U << i;
        local.outputs.push_back(local_.canonical(output));
        continue;
      }
      plan::Layout layout(value.type.dims);
      for (Axis axis : kAxes) layout.Set(axis, MadeAlong(axis, choice, i));
      if (value.kind != ValueKind::kState) {
        local_.AddCanonical(value, layout, ValueKind::kActivation, output);
      } else if (!(layout == local_.LayoutOf(output))) {
        return Internal("{} ({}) makes {} of the state {}, which is whole on every rank", node.name,
                        node.op->name, layout.ToString(), value.name);
      }
      local.outputs.push_back(local_.canonical(output));
    }
    local_.AddNode(std::move(local));
    for (const ValueId output : node.outputs) RETURN_IF_ERROR(ConvertToPin(output, node));
    return absl::OkStatus();
  }

  // Behind the node that made it, so that all readers find a pinned activation as its pin says.
  absl::Status ConvertToPin(ValueId output, const Node& node) {
    const graph::Value& value = graph_.value(output);
    if (value.kind == ValueKind::kAccumulator || value.kind == ValueKind::kState) return absl::OkStatus();
    if (options_.mesh.size(Axis::kTp) == 1) return absl::OkStatus();
    const std::optional<Placement> pin = PinOf(value, Axis::kTp, options_);
    if (!pin) return absl::OkStatus();
    const std::optional<plan::Layout> want =
        WithPlacement(local_.LayoutOf(output), value.type.shape, Axis::kTp, *pin, options_.mesh);
    if (!want) return NoLawful(value, Axis::kTp, options_.mesh);
    local_.SetCanonical(output, converter_.Convert(local_.canonical(output), *want, node, /*share=*/false));
    return absl::OkStatus();
  }

  const graph::Graph& graph_;
  const PlacementOptions& options_;
  DecidedLayouts& decided_;
  LocalGraphBuilder local_;
  SignatureChooser chooser_;  // reads local_, as it is when a node's turn comes
  LayoutConverter converter_;
};

}  // namespace

absl::StatusOr<LocalGraph> PlaceGraph(const graph::Graph& graph, const PlacementOptions& options,
                                      DecidedLayouts* decided) {
  return Placer(graph, options, decided).Run();
}

}  // namespace engine::compile
