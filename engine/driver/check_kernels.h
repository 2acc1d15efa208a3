// Kernels of a plan that are slow where the device has fast ones, so that a recipe has to ask for them.
#pragma once

#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/plan/plan.h"
#include "engine/recipe/recipe.h"

namespace engine::driver {

// Whether a kernel of the plan has obstacles (plan::SlowPath::obstacles).
bool HasRefusedKernels(const plan::Plan& plan);

// An error (E305) for each kind of attention that would run in the reference kernels although the device has fast ones and
// precision.attention is not "reference": at the key or the step that causes it, with what each family of fast kernels does not
// take, what it takes instead, and what an iteration is predicted to take with the reference kernels. `plan` is the recipe's.
// `engine plan` prints the plan of such a recipe and ends with exit code 1.
std::vector<Diagnostic> CheckKernels(const recipe::Recipe& recipe, const plan::Plan& plan);

}  // namespace engine::driver
