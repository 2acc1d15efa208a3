// Compiling a recipe for the command line: a plan's errors as located diagnostics.
#pragma once

#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/base/status.h"
#include "engine/plan/plan.h"
#include "engine/recipe/recipe.h"

namespace engine::cli {

// An error of the compiler or verifier, at the key that says most about it.
Diagnostic PlanDiagnostic(const recipe::Recipe& recipe, const absl::Status& status);

// The part of `engine check` that needs a plan: mistakes of a valid recipe that only its plan shows, weights that a run
// is to begin with and that are not the plan's, and warnings.
std::vector<Diagnostic> CheckPlan(const recipe::Recipe& recipe);

}  // namespace engine::cli
