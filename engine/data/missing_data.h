// What to do about a data set that is not there.
#pragma once

#include <string>

#include "engine/recipe/recipe.h"

namespace engine::data {

// A hint, without an end of line: where PREFIX.idx is instead, if it lies relative to the recipe's folder or
// to one above it, as data paths are relative to the working directory; else the command that makes a data
// set of that name with the recipe's tokenizer, and what needs none.
std::string HintForMissingData(const recipe::Recipe& recipe, const std::string& prefix);

}  // namespace engine::data
