// The global batch of each iteration. It is training.global_batch, or grows up to that by [training.rampup], as with
// Megatron-LM's --rampup-batch-size START INCREMENT SAMPLES: with n = (global_batch − start) / increment steps, an
// iteration that begins when c samples have been consumed has
//   start + ⌊c · n / samples⌋ · increment   samples where c < samples, else global_batch.
// All of it follows from the recipe, so that every size has its own program, made before the run.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "engine/recipe/recipe.h"

namespace engine::recipe {

// Whether the batch grows. A ramp that the rules refuse is none: its numbers do not lead from start to global_batch, or
// through more than kMostTurns sizes.
bool Ramps(const Training& training);

// The sizes that there may be, smallest first; the last is global_batch.
std::vector<std::int64_t> BatchSizes(const Training& training);

// Samples of the iteration that begins when so many have been consumed.
std::int64_t BatchAt(const Training& training, std::int64_t consumed);

struct Progress {
  std::int64_t iterations = 0;
  std::int64_t samples = 0;  // consumed
};

// How far a training gets from there in whole iterations: to so many iterations and no further than so many samples, both
// counted from its beginning.
inline constexpr std::int64_t kNoEnd = std::numeric_limits<std::int64_t>::max() / 2;
Progress RunOn(const Training& training, Progress from, std::int64_t most_iterations,
               std::int64_t most_samples);

}  // namespace engine::recipe
