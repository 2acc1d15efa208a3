// What the first half of a search asks of each layout.
#pragma once

#include <cstdint>
#include <limits>

#include "engine/base/status.h"
#include "engine/plan/plan.h"
#include "engine/recipe/recipe.h"

namespace engine::search {

struct Estimate {
  plan::MemoryBreakdown memory;  // of the stage with the largest arena
  std::int64_t arena_bytes = 0;  // its
  std::int32_t stage = 0;
  double iteration_s = 0;
  double held_up_s = 0;  // of it: what reductions hold up the passes of halves that run in turns
  // Such halves would wait for each other, so that the layout has no plan with them; nothing else is set. Fold
  // estimates whole microbatches then.
  bool halves_refused = false;
};

// Estimates recipes that differ in layout, batch and recomputation alone: one model, precision, optimizer and
// cluster, one world where the device is a CPU. Not for several threads at once.
class Estimator {
 public:
  Estimator() = default;
  Estimator(const Estimator&) = delete;
  Estimator& operator=(const Estimator&) = delete;
  virtual ~Estimator() = default;

  // The recipe must be valid. Error: a layout that the model does not allow. Of a layout that takes longer
  // than `slow_s` the seconds may be fewer than its own, but are more than `slow_s`: its passes need not be
  // played for that.
  virtual absl::StatusOr<Estimate> Fold(const recipe::Recipe& recipe, double slow_s) = 0;

  // Bytes of parameters, gradients and optimizer, and of the blocks' inputs that every microbatch under way
  // keeps, of the stage that has most: no way to recompute needs less. 0: nothing is known.
  virtual absl::StatusOr<std::int64_t> LeastBytes(const recipe::Recipe& recipe) = 0;

  // Seconds that no plan of this layout takes less than, whichever way it recomputes, as far as is known from
  // layouts of larger micro-batches that were folded before: a sample takes longer in a smaller one. 0:
  // nothing is known.
  virtual double LeastSeconds(const recipe::Recipe& recipe) = 0;

  virtual std::int64_t probes() const = 0;  // plans compiled so far
};

}  // namespace engine::search
