// What a budget of rows of experts (parallelism.expert_rows) means, in a plan's notes.
#pragma once

#include "engine/plan/plan.h"

namespace engine::driver {

// Of the experts that work in passes, those with the largest buffers: how many rows these hold and what they take, and how many
// passes the worst load, even loads and a named skew take. Nothing where there are none.
void AddRowNotes(plan::Plan* plan);

}  // namespace engine::driver
