// Results of CUDA calls as absl::Status.
#pragma once

#include <cuda_runtime_api.h>

#include "engine/base/status.h"

namespace engine::backend::cuda {

// Out of memory is ResourceExhausted, everything else Internal. `what` is the call.
inline absl::Status ToStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  if (error == cudaErrorMemoryAllocation) {
    return ResourceExhausted("{}: {}", what, cudaGetErrorString(error));
  }
  return Internal("{}: {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

#define RETURN_IF_CUDA_ERROR(call) RETURN_IF_ERROR(::engine::backend::cuda::ToStatus((call), #call))

}  // namespace engine::backend::cuda
