// The local graph while the placement pass makes it (placements.h).
#pragma once

#include <array>
#include <string>
#include <vector>

#include "engine/compile/placements.h"
#include "engine/graph/graph.h"
#include "engine/plan/plan.h"

namespace engine::compile {

// Appends values and nodes to a local graph, and knows which of its values stands for each value of the logical
// graph so far, and along which axes a parameter's or an accumulator's placement is decided. It decides nothing
// itself.
class LocalGraphBuilder {
 public:
  // `graph` must outlive it.
  explicit LocalGraphBuilder(const graph::Graph& graph);

  // Both return the new value's index. `source`: the value of the logical graph that it stands for.
  std::int32_t AddValue(std::string name, const graph::TensorType& type, plan::Layout layout,
                        graph::ValueKind kind, graph::ValueId source);
  // The same, and from here on it is the one that stands for `source`.
  std::int32_t AddCanonical(const graph::Value& value, plan::Layout layout, graph::ValueKind kind,
                            graph::ValueId source);
  void SetCanonical(graph::ValueId id, std::int32_t index) {
    result_.value_of[static_cast<size_t>(id)] = index;
  }
  void AddNode(LocalNode node) { result_.nodes.push_back(std::move(node)); }

  const plan::LocalValue& value(std::int32_t index) const {
    return result_.values[static_cast<size_t>(index)];
  }
  std::int32_t canonical(graph::ValueId id) const { return result_.value_of[static_cast<size_t>(id)]; }
  const plan::Layout& LayoutOf(graph::ValueId id) const { return value(canonical(id)).layout; }

  // Whether it is a parameter, an accumulator or a state that may be split, whose placement along this axis the first node to touch it decides,
  // and none has.
  bool Undecided(graph::ValueId id, graph::Axis axis) const;
  // Decides it, unless it is decided.
  void Decide(graph::ValueId leaf, graph::Axis axis, graph::Placement placement);

  // Ends the work: the graph, with the shapes of one rank and the logical graph's states.
  LocalGraph Finish(const plan::Mesh& mesh) &&;

 private:
  void SizeSlots(const LocalNode& node);

  const graph::Graph& graph_;
  LocalGraph result_;
  std::vector<std::array<bool, 4>> decided_;  // by value of the logical graph and axis
};

}  // namespace engine::compile
