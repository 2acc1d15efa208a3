// `engine plan --passes` and `--after`: the compiler's passes, one by one.
#pragma once

#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/plan/plan.h"
#include "engine/recipe/recipe.h"

namespace engine::cli {

std::vector<std::string> PassNames();

// What there is after the pass of that name, where the recipe is compiled as `plan` was (with halves or without);
// name "": a table of all passes and the time that each took.
absl::StatusOr<std::string> PassText(const recipe::Recipe& recipe, const plan::Plan& plan,
                                     const plan::DeviceProfile& profile, const std::string& name);

}  // namespace engine::cli
