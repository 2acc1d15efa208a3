// Seconds of an iteration of a folded layout (search/fold.h), from what its chunks' passes and its stages' exchange and
// update take.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/compile/flat_exchange.h"
#include "engine/plan/pass_clock.h"
#include "engine/recipe/recipe.h"
#include "engine/search/chunk_facts.h"
#include "engine/search/pass_schedule.h"
#include "engine/search/probes.h"
#include "engine/search/stage_states.h"

namespace engine::search {

// All that the time of an iteration depends on.
struct FoldedLayout {
  const recipe::Recipe& recipe;
  const compile::FlatExchange& exchange;
  const std::vector<std::int64_t>& blocks;  // by chunk
  const Chunks& chunks;
  const std::vector<const StageStates*>& states;  // by stage
  const PassSchedule& schedule;
  const Probe& probe;  // of the first chunk
};

struct IterationTime {
  double seconds = 0;
  double held_up_s = 0;  // of it: what reductions hold up the passes of halves that run in turns
};

// Of an iteration that takes longer than `slow_s` the seconds may be fewer than its own, but are more than `slow_s`:
// its passes need not be played for that.
IterationTime TimeIteration(const FoldedLayout& layout, double slow_s);

// What the passes of the recipe's microbatches take at least, whatever their order.
double LeastSecondsOfPasses(const plan::PassTimes& times, const recipe::Recipe& recipe);

}  // namespace engine::search
