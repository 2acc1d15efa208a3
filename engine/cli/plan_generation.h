// The text of a plan that generates.
#pragma once

#include <cstdint>
#include <string>

#include "engine/plan/plan.h"
#include "engine/recipe/recipe.h"

namespace engine::cli {

// Its layout, with so many slots on all ranks, and memory, what its caches take, and each step of generation with the time that is
// predicted for it.
std::string GenerationText(const plan::Plan& plan, const recipe::Recipe& recipe, std::int64_t slots);

}  // namespace engine::cli
