// What a model's graph must have so that it can be trained, and what a recipe needs to know of it.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/graph/graph.h"
#include "engine/recipe/document.h"
#include "engine/recipe/recipe.h"

namespace engine::model {

// Every input comes from the data, tokens are looked up, and every parameter has a part in a loss. Mistakes are added.
void CheckTrainable(const recipe::Node& text, const graph::Graph& graph,
                    std::vector<Diagnostic>* diagnostics);

// Whether tp ranks can share the model's weights: heads of attention, and what is wide between two products.
bool SplitsOver(const recipe::Recipe& recipe, std::int64_t tp);
// The same of a graph; a size that they cannot share is a mistake, shown at parallelism.tp.
void CheckSplits(const recipe::Recipe& recipe, const graph::Graph& graph,
                 std::vector<Diagnostic>* diagnostics);

// Where generate.invariant asks for it, no step mixes tokens (ops::MixesTokens); one that does is a mistake, shown there.
void CheckOneOrder(const recipe::Recipe& recipe, const graph::Graph& graph,
                   std::vector<Diagnostic>* diagnostics);

// Features of a token in the residual stream: what a layer hands on; 0 where there are no layers.
std::int64_t StreamWidth(const graph::Graph& graph);

// Layers: units that a pipeline may be cut between.
std::int64_t CountBlocks(const graph::Graph& graph);

// How many tokens there are: rows of the table that the input `tokens` looks up; 0 where none does.
std::int64_t VocabularyOf(const graph::Graph& graph);

// The largest number by which the experts of all its layers can be shared; 0: it has none.
std::int64_t ExpertsOf(const graph::Graph& graph);

// The smallest number of samples that is made of whole groups of those that a router or a capacity counts together; 1: none
// are. Groups of all samples of a rank are not among them, which are whole whatever there are.
std::int64_t SampleGroupOf(const graph::Graph& graph);

}  // namespace engine::model
