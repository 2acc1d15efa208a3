// [[optimizer.group]]: settings of the optimizer for parameters by their names.
#pragma once

#include <string_view>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/graph/graph.h"
#include "engine/model/module.h"
#include "engine/recipe/recipe.h"

namespace engine::model {

// The keys of a group, for checks and pages.
const std::vector<AttributeDef>& GroupKeys();

// Gives the parameters of a graph what the recipe's groups say of their names; of several groups that say a key of one
// parameter, the last one's counts. Mistakes are added to `diagnostics`.
void ApplyGroups(const recipe::Recipe& recipe, graph::Graph* graph, std::vector<Diagnostic>* diagnostics);

// Whether a name is of a pattern, in which * stands for any characters and ? for one.
bool Matches(std::string_view pattern, std::string_view name);

}  // namespace engine::model
