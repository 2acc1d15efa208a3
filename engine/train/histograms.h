// Histograms of weights and gradients, for sinks that show them.
#pragma once

#include <absl/status/status.h>

#include <cstdint>

#include "engine/recipe/recipe.h"
#include "engine/train/position.h"
#include "engine/train/run_context.h"

namespace engine::train {

// Whether the recipe wants them after this iteration, from 1.
bool HistogramsDue(const recipe::Recipe& recipe, std::int64_t iteration);

// Of all parameters, over all ranks, as they are after the iteration of `position`, and of the gradients that its update reduced; rank 0's
// process tells them. Called by all ranks' processes; no iteration is under way.
absl::Status TellHistograms(const RunContext& run, const Position& position);

}  // namespace engine::train
