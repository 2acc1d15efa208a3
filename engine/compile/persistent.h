// What lies in one place for all programs of a stage: parameters, their gradients, the optimizer's states, metrics,
// quantised weights, and the inputs of a whole iteration.
#pragma once

#include <absl/container/flat_hash_set.h>

#include <cstdint>

#include "engine/compile/draft.h"
#include "engine/compile/stage.h"
#include "engine/compile/unfinished_stage.h"
#include "engine/plan/plan.h"

namespace engine::compile {

struct Persistent {
  Storage values;
  // Gradients that go on to a shard: their buffers are others' in turn (SelectInputs::in_turns).
  absl::flat_hash_set<std::int32_t> in_turns;
};

// Places all of it at the front of the arena, also the states (compile/states.h). The stage has its chunks.
Persistent PlacePersistent(const StageInputs& inputs, const plan::Plan& plan, UnfinishedStage* stage);

}  // namespace engine::compile
