// From a recipe to its verified plan: the one place where a model family and the compiler meet.
#pragma once

#include <cstdint>
#include <vector>

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
absl::StatusOr<compile::Compiled> CompileAsSaid(const recipe::Recipe& recipe,
                                                const compile::CompileOptions& options);

// The two steps of CompileRecipe. Microbatches are compiled whole where they cannot be cut into halves, and where halves
// could hold up the pipeline (Policy::halves_may_be_held_up) and the predicted time of whole ones is less.
absl::StatusOr<plan::Plan> CompileUnverified(const recipe::Recipe& recipe,
                                             const compile::CompileOptions& options);
// The same with no window on any attention, to see what windows cost.
absl::StatusOr<plan::Plan> CompileWithoutWindows(const recipe::Recipe& recipe,
                                                 const compile::CompileOptions& options);
// What generates: how many sequences at a time, how long, and the programs that there are for them. Each rank of dp · ep has its own
// sequences, as many as every other, and all run the same program at a time.
struct GenerationShape {
  std::int64_t slots = 1;    // sequences at a time, on all ranks together: a multiple of dp · ep
  std::int64_t context = 1;  // tokens of one at most
  std::vector<std::int64_t>
      prefill_tokens;  // of a program each, growing: first tokens of one sequence a rank
  std::vector<std::int64_t>
      decode_batches;  // likewise: sequences of a rank of which each gets one more token
  std::int64_t logits_bytes = std::int64_t{256}
                              << 20;  // of a program on a rank, at most (of one token, whatever it takes)
};

// How many ranks have sequences of their own: dp · ep.
std::int64_t SlotRanks(const recipe::Recipe& recipe);

// Takes out of the recipe what is of training alone, so that it says one sequence at a time on each of those ranks: sequence parallelism and
// ZeRO's shards, batches, and documents side by side.
void SetForGeneration(recipe::Recipe* recipe);

// A plan whose programs are steps of generation (model/generation.h), verified. Errors as CompileRecipe's; also slots that
// dp · ep does not divide, prompts that 2 · cp does not divide, and a model that cannot generate token by token.
absl::StatusOr<plan::Plan> CompileGeneration(const recipe::Recipe& recipe,
                                             const compile::CompileOptions& options,
                                             const GenerationShape& shape);

absl::Status VerifyAgainst(const recipe::Recipe& recipe, const plan::Plan& plan);

}  // namespace engine::driver
