// When a run of a recipe saves.
#pragma once

#include "engine/recipe/recipe.h"

namespace engine::recipe {

// Whether it saves between iterations, and not at the end alone.
inline bool SavesBetween(const Recipe& recipe) {
  return recipe.checkpoint.interval > 0 && recipe.checkpoint.interval < recipe.iterations();
}

// Whether it does so while training goes on.
inline bool SavesBeside(const Recipe& recipe) { return recipe.checkpoint.background && SavesBetween(recipe); }

}  // namespace engine::recipe
