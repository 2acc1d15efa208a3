// A cache that an op moves to another place: the copy that is needed then.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "engine/backend/backend.h"
#include "engine/backend/cuda/libraries/status.h"

namespace engine::backend::cuda {

// A cache that is to be elsewhere than it was; in a plan it stays where it is.
struct MovedCache {
  MovedCache(const TensorView& from, const TensorView& to)
      : before(from.data),
        after(to.data),
        bytes(static_cast<std::size_t>(to.shape.elements() * SizeOf(to.dtype))) {}

  absl::Status Copy(cudaStream_t stream) const {
    if (before == after) return absl::OkStatus();
    return ToStatus(cudaMemcpyAsync(after, before, bytes, cudaMemcpyDeviceToDevice, stream), "a cache");
  }

  const void* before;
  void* after;
  std::size_t bytes;
};

}  // namespace engine::backend::cuda
