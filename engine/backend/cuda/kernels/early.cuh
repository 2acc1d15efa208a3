// Kernels that begin while the one before them still runs (programmatic dependent launch, CUDA programming guide; PTX ISA,
// "griddepcontrol"), as short ones gain by: their launch, and what they read that no kernel makes, is done meanwhile.
//
// A kernel that is launched early calls AwaitEarlier() before it reads what other kernels make, and before it writes
// anything; then all kernels before it have ended. It has to call it: those behind it wait for its end alone. One that calls
// LetNextBegin() lets the next one begin when all its blocks have come there or ended. Where a kernel is launched as ever,
// both do nothing.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace engine::backend::cuda {

// Products of more rows are long, and so is what is between them.
inline constexpr std::int64_t kMostEarlyRows = 64;
inline constexpr std::int64_t kMostEarlyElements = std::int64_t{1} << 18;

__device__ __forceinline__ void AwaitEarlier() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void LetNextBegin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Whether the GPU of this thread can launch early.
inline bool CanLaunchEarly() {
  static const bool can = [] {
    int device = 0;
    int major = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
           major >= 9;
  }();
  return can;
}

// kernel<<<grid, threads, bytes, stream>>>(arguments…), early if wanted and possible.
template <typename... Parameters, typename... Arguments>
void Launch(bool early, void (*kernel)(Parameters...), dim3 grid, dim3 threads, std::size_t bytes,
            cudaStream_t stream, Arguments... arguments) {
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = threads;
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = early && CanLaunchEarly() ? 1 : 0;
  cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace engine::backend::cuda
