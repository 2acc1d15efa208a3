// What an experienced trainer would say about a recipe that works: warnings (recipe/codes.h), not errors.
#pragma once

#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/plan/plan.h"
#include "engine/predict/predict.h"
#include "engine/recipe/recipe.h"

namespace engine::driver {

// Warnings, each at the key that causes it, but for those that the recipe allows, sorted by place. `plan` is
// the recipe's for `profile`, `time` its prediction: warnings that need times are left out where rates are
// missing.
std::vector<Diagnostic> Advise(const recipe::Recipe& recipe, const plan::Plan& plan,
                               const predict::Prediction& time, const plan::DeviceProfile& profile);

}  // namespace engine::driver
