// [model.inputs]: what a batch brings, by name.
#pragma once

#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/graph/graph.h"
#include "engine/model/scope.h"

namespace engine::model {

// Adds the inputs that attention has where documents are masked (kSequencePositions, kDocumentSpans). A text that has
// inputs of these names is in error.
void AddDocumentInputs(const recipe::Node* inputs, const DimTable& dims, graph::Graph* graph,
                       std::vector<Diagnostic>* diagnostics);

// Adds the inputs to graph and scope, in the order of the text: tokens = "i32[B,S]". Mistakes are added to `diagnostics`.
void AddInputs(const recipe::Node* inputs, const DimTable& dims, graph::Graph* graph, Scope* scope,
               std::vector<Diagnostic>* diagnostics);

}  // namespace engine::model
