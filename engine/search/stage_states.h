// What a stage of a folded layout (search/fold.h) keeps whatever its microbatches do, and the exchange and
// update of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/compile/flat_exchange.h"
#include "engine/plan/plan.h"
#include "engine/predict/cost.h"
#include "engine/recipe/recipe.h"

namespace engine::search {

// Exchange of one bucket, as predict/cost.h has it.
struct ExchangeCost {
  double seconds = 0;
  double finish = 0;  // computation that it leaves
  double beside = 0;  // share of its speed that computation loses beside it
};

// Computation with exchange behind it.
struct TwoStreams {
  double now = 0, exchanged = 0, finish = 0;
  double beside = 0;

  void Compute(double seconds) {
    const double slow = std::min(std::max(0.0, exchanged - now), seconds / (1 - beside));
    now += slow + seconds - slow * (1 - beside);
  }
  void Start(const ExchangeCost& exchange) {
    exchanged = std::max(exchanged, now) + exchange.seconds;
    finish += exchange.finish;
    beside = exchange.beside;
  }
  // Computation waits for all exchange so far.
  void Join() {
    now = std::max(now, exchanged) + finish;
    finish = 0;
  }
};

// What a stage keeps whatever its microbatches do, and the exchange and update of it.
struct StageStates {
  plan::MemoryBreakdown memory;  // parameters, gradients and optimizer
  std::int64_t numbers = 1;      // of the whole model's metrics, which every stage has room for
  std::int64_t update_bytes = 0;
  std::int64_t sum_bytes = 0;  // where pushed gradients arrive
  // Of a block, where early: of all its buckets, as experts have one of their own.
  ExchangeCost reduce, reduce_head, gather;
  double after_reduce_s = 0;   // computation: adding to a shard
  double before_gather_s = 0;  // copying one
  // Of the update, on both sides of the sum over the world.
  double before_meeting_s = 0, after_meeting_s = 0;
};

// What a stage holds, as far as StageStates depends on it.
struct StageShape {
  std::int64_t blocks = 0;
  bool embedding = false, head = false;
  bool operator==(const StageShape&) const = default;
};

// Parameters of the whole model in the order of a plan, all blocks as the probe's first.
struct ModelParameters {
  plan::Plan plan;                  // units, values, parameters, metrics (of which their number counts), mesh
  std::vector<std::int32_t> units;  // by parameter; all blocks stand between an entry and an exit
};

// Read off a probe of the recipe's model, of the parameters of its embedding, its first block and its head.
ModelParameters ParametersOfProbe(const recipe::Recipe& recipe, const plan::Plan& probe);

// `parameters`: its mesh becomes the recipe's.
StageStates StatesOfStage(const recipe::Recipe& recipe, const compile::FlatExchange& exchange,
                          const StageShape& shape, const plan::DeviceProfile& profile,
                          ModelParameters* parameters);

}  // namespace engine::search
