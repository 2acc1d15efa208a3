// A model's graph as a configuration describes one: its sizes and attributes by their places, and whether two graphs
// compute the same.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/graph.h"

namespace engine::hf {

// Where a graph says something, by the names that its steps and parameters have.
struct Place {
  enum class Kind : std::uint8_t {
    kNone,
    kParameterDim,  // dim `dim` of parameter `name`
    kInputDim,      // dim `dim` of input `input` of node `name`
    kAttribute,     // `attribute` of node `name`
    kHas,           // whether there is a parameter `name`
    kLayers,        // how many layers the stack `name` has
    kAct,           // the activation that node `name` is: "silu", "gelu_tanh"
  } kind = Kind::kNone;
  std::string_view name = {};
  std::string_view attribute = {};
  int input = 0, dim = 0;
};
inline Place DimOf(std::string_view parameter, int dim) {
  return {.kind = Place::Kind::kParameterDim, .name = parameter, .dim = dim};
}
inline Place InputDim(std::string_view node, int input, int dim) {
  return {.kind = Place::Kind::kInputDim, .name = node, .input = input, .dim = dim};
}
inline Place AttributeOf(std::string_view node, std::string_view attribute) {
  return {.kind = Place::Kind::kAttribute, .name = node, .attribute = attribute};
}
inline Place HasParameter(std::string_view parameter) {
  return {.kind = Place::Kind::kHas, .name = parameter};
}
inline Place LayersOf(std::string_view stack) { return {.kind = Place::Kind::kLayers, .name = stack}; }
inline Place ActOf(std::string_view node) { return {.kind = Place::Kind::kAct, .name = node}; }

class GraphView {
 public:
  // Of a graph that outlives this.
  explicit GraphView(const graph::Graph& graph);

  const graph::Graph& graph() const { return graph_; }
  const graph::Node* FindNode(std::string_view name) const;            // null if there is none
  const graph::Parameter* FindParameter(std::string_view name) const;  // likewise
  // The first node of layer `layer` of a stack that is of this op; of layers that have several blocks, in their order.
  const graph::Node* FindInLayer(std::string_view stack, std::int64_t layer, std::string_view op) const;
  std::int64_t Layers(std::string_view stack) const;  // 0: there is no such stack

  // Nothing where the graph has no such place.
  std::optional<std::int64_t> Whole(const Place& place) const;
  std::optional<double> Number(const Place& place) const;
  std::optional<bool> Flag(const Place& place) const;  // of kHas always
  std::optional<std::string> Act(const Place& place) const;

 private:
  const graph::Graph& graph_;
  std::map<std::string, const graph::Node*, std::less<>> nodes_;
  std::map<std::string, const graph::Parameter*, std::less<>> parameters_;
};

// What is different between what two graphs make their logits of; empty: they compute the same, of parameters of the same
// names and shapes. Names of steps, losses, dropout and initial values do not count; a difference that several layers have
// is one line. `ours` and `theirs`: how messages call them.
std::vector<std::string> Differences(const graph::Graph& ours, const graph::Graph& theirs,
                                     std::string_view their_name);

}  // namespace engine::hf
