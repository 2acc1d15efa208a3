// This machine's GPUs as the device of a run.
#pragma once

#include "engine/cli/device.h"
#include "engine/cli/process_group.h"

namespace engine::cli {

// The only rank, on GPU 0, which is opened here. Errors: more ranks than one; no GPU that will do; a library
// that the recipe needs is missing or too old.
absl::StatusOr<state::Device> MakeCudaDevice(const recipe::Recipe& recipe, const DeviceChoice& choice);

// All ranks of the recipe's layout as threads of this process, rank i on GPU i. Errors: as above; fewer GPUs than ranks.
absl::StatusOr<state::Device> MakeCudaThreads(const recipe::Recipe& recipe, const DeviceChoice& choice);

// One of the ranks of a run of processes, on the GPU of its place on this host (where a launcher shows each
// process one GPU only: on that one; where ranks share GPUs, of which each sees all, they take them in turn).
// The group must outlive it.
absl::StatusOr<state::Device> MakeCudaRank(const recipe::Recipe& recipe, const DeviceChoice& choice,
                                           ProcessGroup* group);

// Name of the file of matrix products' algorithms in the cache's folder (base/cache_folder.h); empty where there is none.
std::string GemmCacheFile();

}  // namespace engine::cli
