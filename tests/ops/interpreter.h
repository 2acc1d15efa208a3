// Runs a graph with the CPU kernels, whole tensors, one node after the other.
#pragma once

#include <map>

#include "engine/graph/graph.h"
#include "tests/ops/tensor.h"

namespace engine::ops_test {

using ValueTensors = std::map<graph::ValueId, Tensor>;

// `values` holds the inputs and parameters that the nodes read; every activation is added to it.
inline void RunGraph(const graph::Graph& graph, ValueTensors* values) {
  for (const graph::Node& node : graph.nodes()) {
    Tensors inputs;
    for (graph::ValueId id : node.inputs) inputs.push_back(values->at(id));
    Tensors outputs = RunOp(*node.op, node.attributes, inputs);
    for (size_t o = 0; o < outputs.size(); ++o) (*values)[node.outputs[o]] = std::move(outputs[o]);
  }
}

}  // namespace engine::ops_test
