// Bytes of a stage of a folded layout (search/fold.h): what it keeps, and what its chunks add.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/plan/plan.h"
#include "engine/recipe/recipe.h"
#include "engine/search/chunk_facts.h"
#include "engine/search/pass_schedule.h"
#include "engine/search/stage_states.h"

namespace engine::search {

// The memory of `stage`, exactly as its plan's. `halves`: parts that a microbatch is cut into.
plan::MemoryBreakdown MemoryOf(const recipe::Recipe& recipe, std::int64_t halves, const StageStates& states,
                               const PassSchedule& schedule, const Chunks& chunks, std::size_t stage);

// Bytes that every microbatch under way keeps of a block at least: the block's input.
std::int64_t BlockInputBytes(const recipe::Recipe& recipe);

}  // namespace engine::search
