// Part of VerifyGradients: from gradients that passes have made to parameters that are updated.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <vector>

#include "engine/plan/plan.h"

namespace engine::plan {

// The segments of a chunk that make gradients, in order.
std::vector<const Segment*> GradientSegments(const StagePlan& stage, const Chunk& chunk);

// What is reduced behind a stage's passes, and its update segment, gradient by gradient.
absl::Status VerifyUpdate(const Plan& plan, std::int32_t stage);

// The copies of a tied table must stay equal.
absl::Status TiedCopiesStayEqual(const Plan& plan);

}  // namespace engine::plan
