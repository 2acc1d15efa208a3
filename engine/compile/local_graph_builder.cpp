#include "engine/compile/local_graph_builder.h"

#include <algorithm>
#include <utility>

#include "engine/base/status.h"
#include "engine/graph/op.h"

namespace engine::compile {

LocalGraphBuilder::LocalGraphBuilder(const graph::Graph& graph) : graph_(graph) {
  result_.value_of.assign(graph.values().size(), -1);
  decided_.assign(graph.values().size(), {false, false, false, false});
  for (const graph::State& state : graph.states()) {
    if (!state.spec.split) decided_[static_cast<size_t>(state.value)] = {true, true, true, true};
  }
}

std::int32_t LocalGraphBuilder::AddValue(std::string name, const graph::TensorType& type, plan::Layout layout,
                                         graph::ValueKind kind, graph::ValueId source) {
  result_.values.push_back({.name = std::move(name),
                            .shape = type.shape,
                            .dtype = type.dtype,
                            .layout = std::move(layout),
                            .local = {},
                            .kind = kind,
                            .source = source});
  return static_cast<std::int32_t>(result_.values.size() - 1);
}

std::int32_t LocalGraphBuilder::AddCanonical(const graph::Value& value, plan::Layout layout,
                                             graph::ValueKind kind, graph::ValueId source) {
  const std::int32_t index = AddValue(value.name, value.type, std::move(layout), kind, source);
  SetCanonical(source, index);
  return index;
}

bool LocalGraphBuilder::Undecided(graph::ValueId id, graph::Axis axis) const {
  const graph::ValueKind kind = graph_.value(id).kind;
  const bool is_leaf = kind == graph::ValueKind::kParameter || kind == graph::ValueKind::kAccumulator ||
                       kind == graph::ValueKind::kState;
  return is_leaf && !decided_[static_cast<size_t>(id)][static_cast<size_t>(axis)];
}

void LocalGraphBuilder::Decide(graph::ValueId leaf, graph::Axis axis, graph::Placement placement) {
  bool& decided = decided_[static_cast<size_t>(leaf)][static_cast<size_t>(axis)];
  if (decided) return;
  decided = true;
  result_.values[static_cast<size_t>(canonical(leaf))].layout.Set(axis, placement);
}

LocalGraph LocalGraphBuilder::Finish(const plan::Mesh& mesh) && {
  for (const graph::State& state : graph_.states()) {
    result_.states.push_back({.value = canonical(state.value), .spec = state.spec});
  }
  for (plan::LocalValue& value : result_.values) value.local = value.layout.LocalShape(value.shape, mesh);
  for (const LocalNode& node : result_.nodes) SizeSlots(node);
  return std::move(result_);
}

// How many slots a rank has, its op says of what the rank has.
void LocalGraphBuilder::SizeSlots(const LocalNode& node) {
  const auto has_slots = [&](std::int32_t output) { return value(output).layout.dims().HasSlots(); };
  if (node.op == nullptr || std::none_of(node.outputs.begin(), node.outputs.end(), has_slots)) return;
  std::vector<graph::TensorType> types;
  for (const std::int32_t input : node.inputs)
    types.push_back({value(input).local, value(input).dtype, value(input).layout.dims()});
  const auto made = node.op->infer(types, node.attributes);
  ENGINE_CHECK(made.ok(), "{} on a rank: {}", node.name, Message(made.status()));
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (has_slots(node.outputs[i]))
      result_.values[static_cast<size_t>(node.outputs[i])].local = (*made)[i].shape;
  }
}

}  // namespace engine::compile
