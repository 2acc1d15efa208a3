// Compiling a recipe for the command line: the device's facts, and a plan's errors as located diagnostics.
#pragma once

#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/base/status.h"
#include "engine/plan/plan.h"
#include "engine/recipe/recipe.h"

namespace engine::cli {

// What is known of the recipe's device: the kernels' scratch memory where this program has its backend, else
// nothing.
plan::DeviceProfile ProfileOf(const recipe::Recipe& recipe);

// An error of the compiler or verifier, at the key that says most about it.
Diagnostic PlanDiagnostic(const recipe::Recipe& recipe, const absl::Status& status);

// The part of `engine check` that needs a plan: mistakes of a valid recipe that only its plan shows.
std::vector<Diagnostic> CheckPlan(const recipe::Recipe& recipe);

}  // namespace engine::cli
