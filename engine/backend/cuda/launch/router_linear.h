// Gradients of a router's linear layer whose dy is fp32 beside 16-bit operands; prepare_linear.cpp does the others.
#pragma once

#include "engine/backend/cuda/launch/prepare.h"

namespace engine::backend::cuda {

// Of linear_dgrad and linear_wgrad: whether they are these.
bool CutsGradient(const LaunchArgs& args);
absl::StatusOr<Enqueue> PrepareRouterDgrad(Device& device, const LaunchArgs& args);
absl::StatusOr<Enqueue> PrepareRouterWgrad(Device& device, const LaunchArgs& args);

}  // namespace engine::backend::cuda
