// From a recipe to its verified plan: the one place where a model family and the compiler meet.
#pragma once

#include "engine/compile/compile.h"
#include "engine/recipe/recipe.h"

namespace engine::driver {

// Builds the recipe's model with and without dropout, compiles both (compile/compile.h) and verifies the result
// (verify/verify.h), which includes that it fits the cluster's memory. The recipe must have passed validation.
// Errors: InvalidArgument for a layout that the model does not allow, ResourceExhausted where the arena
// exceeds the device, Internal for a plan that is wrong.
absl::StatusOr<plan::Plan> CompileRecipe(const recipe::Recipe& recipe,
                                         const compile::CompileOptions& options);

// As `options` say, even where CompileRecipe chooses otherwise.
absl::StatusOr<plan::Plan> CompileAsSaid(const recipe::Recipe& recipe,
                                         const compile::CompileOptions& options);

// Whether what dp exchanges in the last microbatch holds up the halves' own exchange (compile/compile.h): each
// stage of a pipeline then waits for it.
bool MayHoldUpHalves(const recipe::Recipe& recipe, const compile::CompileOptions& options);

// The two halves of it. Of a plan whose pipeline could be held up by halves that run in turns, the one
// without is taken where its predicted time is less.
absl::StatusOr<plan::Plan> CompileUnverified(const recipe::Recipe& recipe,
                                             const compile::CompileOptions& options);
absl::Status VerifyAgainst(const recipe::Recipe& recipe, const plan::Plan& plan);

}  // namespace engine::driver
