// Low-rank adapters beside linear steps ([lora]; Hu et al., arXiv:2106.09685): which steps have one, and what is frozen.
#pragma once

#include <string_view>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/graph/graph.h"
#include "engine/recipe/recipe.h"

namespace engine::model {

// Whether a linear step of this name ("layers.0.attention.qkv") has an adapter.
bool HasAdapter(const recipe::Lora& lora, std::string_view step);

// "layers.0.attention.qkv" of its adapter's parameter; empty of any other name.
std::string_view StepOfAdapter(std::string_view parameter);

// Freezes all parameters of a graph but the adapters', where there are any. A mistake, at lora.targets: a pattern that is no
// step's that has an adapter.
void ApplyLora(const recipe::Recipe& recipe, graph::Graph* graph, std::vector<Diagnostic>* diagnostics);

}  // namespace engine::model
