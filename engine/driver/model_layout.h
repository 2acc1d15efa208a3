// On how many ranks a trained model is to run, where that is not as its recipe says.
#pragma once

#include <cstdint>
#include <string>

#include "engine/recipe/recipe.h"

namespace engine::driver {

struct ModelLayout {
  std::int64_t dp = 1, tp = 1, pp = 1, cp = 1, ep = 1;
};

// Puts the recipe on the layout. Returns the options of commands that say so, "--tp 2 --pp 2"; empty: the recipe had it already.
// Whether the model can be split so is a matter of the rules, which the recipe has to pass again.
std::string SetLayout(const ModelLayout& layout, recipe::Recipe* recipe);

// " " between them, where both are there.
std::string JoinOptions(const std::string& first, const std::string& second);

}  // namespace engine::driver
