// A plan's schedule as it would run if a forward pass took one unit of time, a backward pass two (one, and
// its weights pass another, where there is one), and nothing else any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/plan/schedule.h"

namespace engine::plan {

struct TimelineTurn {
  Pass pass = Pass::kForward;
  std::int32_t chunk = 0;
  std::int32_t microbatch = 0;
  std::int64_t start = 0;
  std::int64_t end = 0;
};

struct Timeline {
  std::vector<std::vector<TimelineTurn>> stages;  // in order of time
  std::int64_t length = 0;
  double bubble = 0;     // idle share of all stages' time
  bool weights = false;  // there are weights passes
};

// Of the training program; of the evaluation where the plan does not train. Played by plan/pass_clock.h.
Timeline SimulateTimeline(const Plan& plan);

// One row a stage, one column a unit of time: forward passes are the microbatch's last digit, backward passes
// letters (a, b, … for 0, 1, …), weights passes capitals (A, B, …), a dot is idle. The middle is left out
// where that is longer than `columns`.
std::string DrawTimeline(const Timeline& timeline, std::int64_t columns);

}  // namespace engine::plan
