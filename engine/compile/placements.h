// The placement pass: logical graph → local graph. For each node and mesh axis it takes the cheapest lawful
// signature of the op and inserts the collective that brings each input from the placement it has to the one
// it must have; so all communication of tensor, sequence, context and data parallelism is derived, none is
// written down.
//
// Cost of a signature = bytes that its conversions put on the wire, of inputs and of outputs whose placement
// is pinned, and of the reduce-scatter that any other partial output will need; ties go to the fewer
// conversions, then to the op's order. The choice is made node by node, without looking ahead. Parameters are
// never converted: the first op that reads one decides how it is split, which only tp may do; of several graphs
// that have it, the first one's. So it is with states, which lie in one place for all programs. Converted
// copies are shared by the readers of one layer and phase; a saved activation keeps the placement that it was
// produced with, and is converted again in the backward phase.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/plan/plan.h"

namespace engine::compile {

// An op or a conversion, over LocalValues.
struct LocalNode {
  const graph::OpDef* op = nullptr;  // null: a conversion
  plan::Collective collective = plan::Collective::kNone;
  graph::Axis axis = graph::Axis::kTp;
  graph::Reduction reduction = graph::Reduction::kSum;
  std::string name;
  std::vector<std::int32_t> inputs;
  std::vector<std::int32_t> outputs;
  graph::Attributes attributes;
  std::uint32_t accumulate = 0;
  graph::Phase phase = graph::Phase::kForward;
  std::int32_t unit = 0;  // graph::Node::unit
  graph::ComponentId component = graph::kNoComponent;
};

struct LocalGraph {
  std::vector<plan::LocalValue> values;
  std::vector<LocalNode> nodes;
  std::vector<graph::State> states;    // of its values
  std::vector<std::int32_t> value_of;  // canonical LocalValue of each logical value; −1 where there is none
};

struct PlacementOptions {
  plan::Mesh mesh;
  bool sequence_parallel = false;
};

// How parameters and states lie that graphs placed before have decided, by name.
using DecidedLayouts = absl::flat_hash_map<std::string, plan::Layout>;

// The parameters and states of `graph` lie as `decided` says; those that it does not have are added to it.
absl::StatusOr<LocalGraph> PlaceGraph(const graph::Graph& graph, const PlacementOptions& options,
                                      DecidedLayouts* decided);

}  // namespace engine::compile
