// The part of `engine check` that needs a plan.
#pragma once

#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/recipe/recipe.h"

namespace engine::cli {

// Mistakes of a valid recipe that only its plan shows.
std::vector<Diagnostic> CheckPlan(const recipe::Recipe& recipe);

}  // namespace engine::cli
