// What a planner needs to know of the CUDA executor, on machines without GPUs too.
#pragma once

#include "engine/plan/plan.h"

namespace engine::backend::cuda {

plan::DeviceProfile CudaProfile();

}  // namespace engine::backend::cuda
