// What a recipe asks for that a device has no kernels for.
#pragma once

#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/plan/plan.h"
#include "engine/recipe/recipe.h"

namespace engine::driver {

// An error for each key beyond the profile's limits, where the recipe sets it. Such a recipe can be planned,
// and not run.
std::vector<Diagnostic> CheckDevice(const recipe::Recipe& recipe, const plan::DeviceProfile& profile);

}  // namespace engine::driver
