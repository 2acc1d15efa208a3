// A fused op as the plain ops that it stands for, run one after the other.
#pragma once

#include "tests/ops/interpreter.h"

namespace engine::ops_test {

// The composition's graph, its values, and its outputs.
struct Composed {
  graph::Graph graph;
  ValueTensors values;
  graph::ValueIds outputs;

  Composed(const graph::OpDef& op, const graph::Attributes& attributes, const Tensors& inputs) {
    graph::ValueIds ids;
    for (const Tensor& input : inputs) {
      ids.push_back(graph.AddInput("", input.type()));
      values[ids.back()] = input;
    }
    outputs = op.compose(&graph, ids, attributes);
    RunGraph(graph, &values);
  }
  const Tensor& Output(size_t o) const { return values.at(outputs[o]); }
};

}  // namespace engine::ops_test
