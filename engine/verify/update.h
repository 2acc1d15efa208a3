// Part of VerifyGradients: from gradients that passes have made to parameters that are updated.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <vector>

#include "engine/plan/plan.h"

namespace engine::verify {

// The segments of a chunk that make gradients, in order.
std::vector<const plan::Segment*> GradientSegments(const plan::StagePlan& stage, const plan::Chunk& chunk);

// What is reduced behind a stage's passes, and its update segment, gradient by gradient.
absl::Status VerifyUpdate(const plan::Plan& plan, std::int32_t stage);

}  // namespace engine::verify
