// Is there a driver, and which GPUs will do? Asked before a run, and by `engine doctor`.
#pragma once

#include <cstdint>
#include <string>

#include "engine/backend/cuda/profile/profile.h"
#include "engine/base/status.h"

namespace engine::backend::cuda {

// Toolkit that this program was compiled with: "13.0"; and what GPUs it has code for: "sm_90a".
std::string ToolkitVersion();
std::string CompiledArchitectures();

// CUDA version that the driver knows: "13.0". NotFound: no driver; FailedPrecondition: too old.
absl::StatusOr<std::string> DriverVersion();

// With a driver that will do: 0 where it finds no GPU. Error: what DriverVersion or the driver says.
absl::StatusOr<int> CountGpus();

struct Gpu {
  std::string name;        // "NVIDIA H200"
  std::string capability;  // "9.0"
  std::int64_t total_bytes = 0;
  std::int64_t free_bytes = 0;
};

// Of the first `count` GPUs.
absl::StatusOr<PeerAccess> LookAtPeers(int count);

// Makes the GPU the calling thread's and looks at it. FailedPrecondition: compute capability below 8.0;
// NotFound: this program has no code for it.
absl::StatusOr<Gpu> LookAtGpu(int index);

}  // namespace engine::backend::cuda
