// What a planner needs to know of the CUDA executor, on machines without GPUs too.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "engine/backend/cuda/profile/scratch.h"
#include "engine/plan/plan.h"

namespace engine::backend::cuda {

// `deterministic` as DeviceOptions of the run: kernels that repeat their bits may need more scratch.
plan::DeviceProfile CudaProfile(bool deterministic = true, const CudaChip& chip = {});

// Whether there is a kernel of that name that adds LaunchArgs::part.
bool AddsPart(std::string_view kernel);

// Which of the first `count` GPUs of a host reach the memory of which others.
struct PeerAccess {
  std::int64_t reach = 0;  // GPUs of the largest aligned blocks within which all do; 0: all of them
  std::string missing;     // "GPU 0 does not reach the memory of GPU 2", of the first that do not
};
PeerAccess AccessOf(int count, const std::function<bool(int from, int to)>& reaches);

}  // namespace engine::backend::cuda
