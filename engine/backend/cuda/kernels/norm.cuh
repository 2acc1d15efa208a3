// What the norms share on the device.
#pragma once

#include "engine/backend/cuda/kernels/vector.cuh"

namespace engine::backend::cuda {

// The one form of a norm's output, so that a gradient kernel repeats the forward kernel's bits.
template <bool kLayer>
__device__ __forceinline__ float Normed(float x, float mean, float rstd) {
  return __fmul_rn(kLayer ? __fsub_rn(x, mean) : x, rstd);
}
template <bool kLayer>
__device__ __forceinline__ float NormOutput(float normed, float gamma, float beta) {
  return kLayer ? __fmaf_rn(normed, gamma, beta) : __fmul_rn(normed, gamma);
}

// Sums kCount (a power of two, at most 32) values over a warp, halving how many a lane holds at each step: 9
// shuffles for 8 values where one after the other takes 40. Lane l gets the sum of value l / (32 / kCount).
template <int kCount>
__device__ __forceinline__ float WarpSums(float (&values)[kCount]) {
  const int lane = threadIdx.x % kWarp;
  int held = kCount;
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    if (held == 1) {
      values[0] += __shfl_xor_sync(kAllLanes, values[0], distance);
      continue;
    }
    held /= 2;
    const bool upper = (lane & distance) != 0;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      if (i >= held) continue;
      const float give = upper ? values[i] : values[i + held];
      const float keep = upper ? values[i + held] : values[i];
      values[i] = keep + __shfl_xor_sync(kAllLanes, give, distance);
    }
  }
  return values[0];
}

}  // namespace engine::backend::cuda
