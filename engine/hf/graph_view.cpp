#include "engine/hf/graph_view.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/graph/op.h"

namespace engine::hf {
namespace {

// "layers.12.attention.core" → 12 for the stack "layers".
std::optional<std::int64_t> LayerOf(std::string_view name, std::string_view stack) {
  if (!name.starts_with(stack) || name.size() <= stack.size() || name[stack.size()] != '.')
    return std::nullopt;
  std::int64_t layer = 0;
  std::size_t at = stack.size() + 1;
  const std::size_t first = at;
  for (; at < name.size() && name[at] >= '0' && name[at] <= '9' && at - first < 9; ++at)
    layer = 10 * layer + (name[at] - '0');
  if (at == first || at == name.size() || name[at] != '.') return std::nullopt;
  return layer;
}

const graph::Attributes::Item* FindItem(const graph::Node& node, std::string_view name) {
  for (const auto& [key, item] : node.attributes.items()) {
    if (key == name) return &item;
  }
  return nullptr;
}

}  // namespace

GraphView::GraphView(const graph::Graph& graph) : graph_(graph) {
  for (const graph::Node& node : graph.nodes()) nodes_.emplace(node.name, &node);
  for (const graph::Parameter& parameter : graph.parameters())
    parameters_.emplace(graph.value(parameter.value).name, &parameter);
}

const graph::Node* GraphView::FindNode(std::string_view name) const {
  const auto found = nodes_.find(name);
  return found == nodes_.end() ? nullptr : found->second;
}

const graph::Parameter* GraphView::FindParameter(std::string_view name) const {
  const auto found = parameters_.find(name);
  return found == parameters_.end() ? nullptr : found->second;
}

const graph::Node* GraphView::FindInLayer(std::string_view stack, std::int64_t layer,
                                          std::string_view op) const {
  for (const graph::Node& node : graph_.nodes()) {
    if (node.op->name == op && LayerOf(node.name, stack) == layer) return &node;
  }
  return nullptr;
}

std::int64_t GraphView::Layers(std::string_view stack) const {
  std::int64_t layers = 0;
  for (const graph::Node& node : graph_.nodes()) {
    if (const std::optional<std::int64_t> layer = LayerOf(node.name, stack))
      layers = std::max(layers, *layer + 1);
  }
  return layers;
}

std::optional<std::int64_t> GraphView::Whole(const Place& place) const {
  if (place.kind == Place::Kind::kParameterDim) {
    const graph::Parameter* parameter = FindParameter(place.name);
    if (parameter == nullptr || place.dim >= parameter->logical_shape.rank()) return std::nullopt;
    return parameter->logical_shape[place.dim];
  }
  if (place.kind == Place::Kind::kInputDim) {
    const graph::Node* node = FindNode(place.name);
    if (node == nullptr || place.input >= static_cast<int>(node->inputs.size())) return std::nullopt;
    const Shape& shape = graph_.value(node->inputs[static_cast<std::size_t>(place.input)]).type.shape;
    if (place.dim >= shape.rank()) return std::nullopt;
    return shape[place.dim];
  }
  if (place.kind == Place::Kind::kAttribute) {
    const graph::Node* node = FindNode(place.name);
    const auto* item = node == nullptr ? nullptr : FindItem(*node, place.attribute);
    const auto* whole = item == nullptr ? nullptr : std::get_if<std::int64_t>(item);
    if (whole != nullptr) return *whole;
  }
  if (place.kind == Place::Kind::kLayers) {
    const std::int64_t layers = Layers(place.name);
    if (layers > 0) return layers;
  }
  return std::nullopt;
}

std::optional<double> GraphView::Number(const Place& place) const {
  if (place.kind == Place::Kind::kAttribute) {
    const graph::Node* node = FindNode(place.name);
    const auto* item = node == nullptr ? nullptr : FindItem(*node, place.attribute);
    const auto* number = item == nullptr ? nullptr : std::get_if<double>(item);
    if (number != nullptr) return *number;
  }
  if (const std::optional<std::int64_t> whole = Whole(place)) return static_cast<double>(*whole);
  return std::nullopt;
}

std::optional<bool> GraphView::Flag(const Place& place) const {
  if (place.kind == Place::Kind::kHas) return FindParameter(place.name) != nullptr;
  if (const std::optional<std::int64_t> whole = Whole(place)) return *whole != 0;
  return std::nullopt;
}

std::optional<std::string> GraphView::Act(const Place& place) const {
  const graph::Node* node = FindNode(place.name);
  if (node == nullptr) return std::nullopt;
  if (node->op->name == "swiglu") return "silu";
  if (node->op->name == "relu2") return "relu2";
  if (node->op->name == "gelu") return node->attributes.Int("tanh", 0) != 0 ? "gelu_tanh" : "gelu_erf";
  if (node->op->name == "glu" || node->op->name == "activation") return node->attributes.String("kind");
  if (const auto* item = FindItem(*node, "act"); item != nullptr) {
    if (const auto* act = std::get_if<std::string>(item)) return *act;
  }
  return std::nullopt;
}

}  // namespace engine::hf
