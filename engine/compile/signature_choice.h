// Which signature of its op a node runs along each axis: the cheapest lawful one, by the cost that placements.h
// defines.
#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/status/statusor.h>

#include <array>
#include <memory>
#include <vector>

#include "engine/compile/local_graph_builder.h"
#include "engine/compile/placements.h"
#include "engine/graph/graph.h"
#include "engine/graph/op.h"
#include "engine/plan/layout.h"

namespace engine::compile {

// Those chosen for one node, by axis; null on axes of size 1. They live as long as the chooser.
using SignatureChoice = std::array<const graph::Signature*, 4>;

// Chooses for one node after the other, and changes nothing of the graphs. Ops give their signatures once for inputs of
// the same types, as the blocks of a model have them.
class SignatureChooser {
 public:
  // All three must outlive it. `local`: how the values that the next node reads lie by then.
  SignatureChooser(const graph::Graph& graph, const PlacementOptions& options, const LocalGraphBuilder& local)
      : graph_(graph), options_(options), local_(local) {}

  // `layouts`: of the inputs, as they are; then as the chosen signatures want them. An error names the node and the axis
  // along which no signature is lawful.
  absl::StatusOr<SignatureChoice> Choose(const graph::Node& node, std::vector<plan::Layout>* layouts);

 private:
  // The signatures of an op along each active axis, of these inputs.
  struct Lawful {
    std::vector<graph::TensorType> types;
    const graph::Attributes* attributes = nullptr;
    std::array<std::vector<graph::Signature>, 4> lists;
  };

  const Lawful& LawfulFor(const graph::Node& node);
  const graph::Signature* Cheapest(const graph::Node& node, graph::Axis axis,
                                   const std::vector<graph::Signature>& lawful,
                                   const std::vector<plan::Layout>& layouts, bool detours) const;

  const graph::Graph& graph_;
  const PlacementOptions& options_;
  const LocalGraphBuilder& local_;
  absl::flat_hash_map<const graph::OpDef*, std::vector<std::unique_ptr<Lawful>>> lawful_;
};

}  // namespace engine::compile
