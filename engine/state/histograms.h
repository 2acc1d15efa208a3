// How a rank's weights and gradients are spread.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/histogram.h"
#include "engine/executor/executor.h"
#include "engine/plan/plan.h"

namespace engine::state {

// Of some of a tensor's elements.
struct PartialHistogram {
  std::int32_t parameter = 0;  // number in the plan
  bool is_gradient =
      false;  // of the parameter's gradient, as the last update reduced it: before clipping, and times the loss scale
  Histogram histogram;
};

// Of what this rank is the one to save, so that those of all ranks together count each element once, without padding. Weights are those
// that the passes compute with, in their type. Reads the arena: no iteration is under way.
absl::StatusOr<std::vector<PartialHistogram>> HistogramsOf(const plan::Plan& plan,
                                                           executor::RankExecutor& executor);

}  // namespace engine::state
