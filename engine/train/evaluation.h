// The loss on the validation samples, while the weights stay.
#pragma once

#include <cstdint>

#include "engine/train/run_context.h"

namespace engine::train {

// Whether the recipe wants an evaluation after this iteration, from 1.
bool EvaluationDue(const recipe::Recipe& recipe, std::int64_t iteration);

// Evaluates the weights as they are after `iteration`, and reports their validation loss.
absl::Status Evaluate(const RunContext& run, std::int64_t iteration);

}  // namespace engine::train
