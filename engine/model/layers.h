// Models with another number of layers, for estimates made of few.
#pragma once

#include <cstdint>

#include "engine/recipe/recipe.h"

namespace engine::model {

// Whether all layers are alike: a decoder's are, and those of a text whose main has one stack, which repeats the same
// blocks with the same values.
bool HasEqualLayers(const recipe::Recipe& recipe);

// The recipe with so many layers; they must be equal.
void SetLayers(std::int64_t layers, recipe::Recipe* recipe);

}  // namespace engine::model
