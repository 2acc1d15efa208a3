// Reverse-mode differentiation of a logical graph, and recomputation as a rewrite of its result.
#pragma once

#include <functional>

#include "engine/graph/graph.h"

namespace engine::graph {

// Appends, after the forward nodes, the nodes that add d(objective)/d(parameter) into one accumulator per
// parameter ("d_<parameter>"). Frozen parameters have none, and no node is appended whose result only their
// gradients, or those of values that no trained parameter reaches, would need. The seeds are the metrics of
// a weight that is not 0. A value that reaches them along several paths gets the sum of their gradients, by
// `add` nodes in order of arrival. `add` is the op used. Gradients of bulk parameters (graph/role.h) are
// kept in `of_bulk`; those of the others, each a sum over all tokens and small, in fp32; in a graph of
// float64, all in float64.
absl::Status Differentiate(Graph* graph, const OpDef& add, DType of_bulk = DType::kF32);

// Runs forward nodes chosen by `again` a second time in the backward phase instead of saving what they
// produced. A chosen node is repeated, just before its first use, for backward nodes of its own unit; what
// other units produced stays saved (so choosing every node saves each block's input and nothing else).
void Recompute(Graph* graph, const std::function<bool(const Node&)>& again);

}  // namespace engine::graph
