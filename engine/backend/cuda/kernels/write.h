// A few bytes from the host to the device without a copy engine or pinned memory: they travel as a kernel
// argument.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace engine::backend::cuda {

inline constexpr std::int64_t kWriteBytes = 64;

// to[bytes] = from[bytes], at most kWriteBytes; `from` is host memory, free again on return.
void WriteBytes(std::byte* to, const void* from, std::int64_t bytes, cudaStream_t stream);

}  // namespace engine::backend::cuda
