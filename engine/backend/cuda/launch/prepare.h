// How an instruction becomes something that can be enqueued: one function an op, listed in
// profile/kernels.list.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <string_view>

#include "engine/backend/backend.h"
#include "engine/backend/cuda/profile/scratch.h"

namespace engine::backend::cuda {

class Device;

// Enqueues one instruction on the stream, every argument but the context fixed. May be called while the
// stream is being captured, so it never synchronises, allocates or reads device memory.
using Enqueue = std::function<absl::Status(cudaStream_t stream, const KernelContext& context)>;

// Checks dtypes and shapes, chooses algorithms, makes descriptors: everything that need not be done again.
// Error: this op has no kernel for these tensors.
using Prepare = absl::StatusOr<Enqueue> (*)(Device& device, const LaunchArgs& args);

struct KernelEntry {
  std::string_view op;
  Prepare prepare = nullptr;
};

// Null if there is none of that name.
const KernelEntry* FindKernel(std::string_view op);

#define KERNEL(op, name) absl::StatusOr<Enqueue> Prepare##name(Device& device, const LaunchArgs& args);
#define KERNEL_SCRATCH(op, name, scratch) KERNEL(op, name)
#include "engine/backend/cuda/profile/kernels.list"
#undef KERNEL
#undef KERNEL_SCRATCH

}  // namespace engine::backend::cuda
