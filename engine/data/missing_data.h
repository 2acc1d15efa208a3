// The hint of an error that says that a data set is not there.
#pragma once

#include <string>

#include "engine/recipe/recipe.h"

namespace engine::data {

// Returns a hint, without an end of line. Where PREFIX.idx is there and PREFIX.bin is not, it says so. Data
// paths are relative to the working directory: where PREFIX.idx lies relative to the recipe's folder, or one
// above it, the hint names that folder. Else it gives the command that makes the data set with the recipe's
// tokenizer, and the setting that needs no data.
std::string HintForMissingData(const recipe::Recipe& recipe, const std::string& prefix);

}  // namespace engine::data
