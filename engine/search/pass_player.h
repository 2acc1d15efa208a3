// The passes of a pipeline, played whole: which stage runs what when (plan/schedule.h), and when it is
// done. A pass is one number here, as transfers are; instructions are predict/predict.h's.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

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

struct PassTimes {
  std::vector<double> forward_s, backward_s, weights_s;  // by chunk
  // What exchange of gradients makes of the last microbatch's last pass of a chunk, where exchange before
  // it has still `busy` to go.
  struct Ending {
    double longer_s = 0, busy_s = 0, finish_s = 0;
  };
  std::function<Ending(size_t chunk, double busy)> ending;
  std::vector<double> send_s;       // by chunk that sends forward
  std::vector<double> send_back_s;  // and back
};

// The schedule of a layout; `microbatches` of the recipe.
PassSchedule MakeSchedule(const recipe::Parallelism& parallelism, std::int64_t microbatches);

// When each stage has run all its passes of so many microbatches, and the exchange behind them. Beyond
// those of the schedule's turns the pipeline goes on at the pace that it has reached.
std::vector<double> PlayPasses(const PassSchedule& schedule, const PassTimes& times,
                               std::int64_t microbatches);

}  // namespace engine::search
