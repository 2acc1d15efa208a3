// The passes of a layout's pipeline, and what they take (plan/pass_clock.h): where microbatches are many, a part of them
// is played, and continued at the pace that the pipeline has reached.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/plan/pass_clock.h"
#include "engine/plan/schedule.h"
#include "engine/recipe/recipe.h"

namespace engine::search {

// Passes of one stage after another: who runs what when (plan/schedule.h).
struct PassSchedule {
  std::vector<std::int64_t> slots;  // by chunk
  // Turns by stage, of so many microbatches that the pipeline runs at a steady pace, and of `period` fewer.
  std::int64_t microbatches = 0, period = 0;
  std::vector<std::vector<plan::Turn>> turns, fewer;
};

// Whether the gradients of weights are made in passes of their own.
bool DefersWeights(const recipe::Parallelism& parallelism);

// The schedule of a layout; `microbatches` of the recipe.
PassSchedule MakeSchedule(const recipe::Parallelism& parallelism, std::int64_t microbatches);

// Seconds until each stage has run all its passes of so many microbatches, and the exchange behind them. Beyond
// those of the schedule's turns the pipeline goes on at the pace that it has reached.
std::vector<double> PlayPasses(const PassSchedule& schedule, const plan::PassTimes& times,
                               std::int64_t microbatches);

}  // namespace engine::search
