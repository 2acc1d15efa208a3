// What a planner needs to know of the CUDA executor, on machines without GPUs too.
#pragma once

#include <string_view>

#include "engine/plan/plan.h"

namespace engine::backend::cuda {

// `deterministic` as DeviceOptions of the run: kernels that repeat their bits may need more scratch.
plan::DeviceProfile CudaProfile(bool deterministic = true);

// Whether there is a kernel of that name that adds LaunchArgs::part.
bool AddsPart(std::string_view kernel);

}  // namespace engine::backend::cuda
