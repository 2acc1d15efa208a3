// [lora]: low-rank adapters beside the products of linear steps (Hu et al., arXiv:2106.09685).
#pragma once

#include <string_view>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/graph/graph.h"
#include "engine/recipe/recipe.h"

namespace engine::model {

// Of a linear step NAME: NAME.lora_a [rank, in…] and NAME.lora_b [out…, rank].
inline constexpr std::string_view kLoraA = "lora_a";
inline constexpr std::string_view kLoraB = "lora_b";

// Whether the linear step of a stack that is called so ("layers.3.attention.qkv"; with parts, "layers.3.wide.u") has an
// adapter.
bool IsLoraTarget(const recipe::Lora& lora, std::string_view step);

// "layers.3.attention.qkv" of its adapter's parameter; empty of any other name.
std::string_view StepOfAdapter(std::string_view parameter);

// Of a graph that was built with the recipe's [lora]: all parameters but adapters are frozen; without adapters nothing
// changes. What groups say comes behind this (groups.h). A mistake, at lora.targets, of each pattern that no linear step of
// a stack is called by.
void FreezeForLora(const recipe::Recipe& recipe, graph::Graph* graph, std::vector<Diagnostic>* diagnostics);

}  // namespace engine::model
