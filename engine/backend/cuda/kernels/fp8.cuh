// FP8 on the device: quantising with a delayed scale, and the strip that a block writes transposed.
#pragma once

#include <cuda_fp8.h>

#include "engine/backend/cuda/kernels/quantize.h"
#include "engine/backend/cuda/kernels/vector.cuh"

namespace engine::backend::cuda {

// NaN where either is NaN, which fmaxf drops.
__device__ __forceinline__ float MaxOrNan(float a, float b) {
  float max;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(max) : "f"(a), "f"(b));
  return max;
}

__device__ __forceinline__ float AbsMax8(float max, const float (&x)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) max = MaxOrNan(max, fabsf(x[i]));
  return max;
}

// Raises the state's abs-max to that of the block, infinity for NaN. All 32 lanes of a warp take part. Max is
// exact, so the order of the blocks does not matter; the plain read first keeps hundreds of thousands of
// warps from queueing for one address.
__device__ __forceinline__ void RaiseAbsMax(float max, float* states) {
  constexpr unsigned kInfinity = 0x7F800000U;
  const unsigned bits = min(__reduce_max_sync(kAllLanes, __float_as_uint(max)), kInfinity);
  auto* const held = reinterpret_cast<unsigned*>(states + kFp8AbsMax);
  if (threadIdx.x % kWarp == 0 && bits > *static_cast<volatile unsigned*>(held)) atomicMax(held, bits);
}

template <__nv_fp8_interpretation_t kFormat>
__device__ __forceinline__ std::uint32_t Quantized4(float a, float b, float c, float d) {
  const std::uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, kFormat);
  const std::uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, kFormat);
  return low | high << 16;
}

// saturate(x · scale), the first in the lowest byte.
template <__nv_fp8_interpretation_t kFormat>
__device__ __forceinline__ uint2 Quantized8(const float (&x)[8], float scale) {
  return make_uint2(Quantized4<kFormat>(x[0] * scale, x[1] * scale, x[2] * scale, x[3] * scale),
                    Quantized4<kFormat>(x[4] * scale, x[5] * scale, x[6] * scale, x[7] * scale));
}

// Column i of four rows of four bytes.
__device__ __forceinline__ void Transpose4(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d,
                                           std::uint32_t (&columns)[4]) {
  const std::uint32_t ab_low = __byte_perm(a, b, 0x5140);
  const std::uint32_t ab_high = __byte_perm(a, b, 0x7362);
  const std::uint32_t cd_low = __byte_perm(c, d, 0x5140);
  const std::uint32_t cd_high = __byte_perm(c, d, 0x7362);
  columns[0] = __byte_perm(ab_low, cd_low, 0x5410);
  columns[1] = __byte_perm(ab_low, cd_low, 0x7632);
  columns[2] = __byte_perm(ab_high, cd_high, 0x5410);
  columns[3] = __byte_perm(ab_high, cd_high, 0x7632);
}

// FP8 numbers of 16, 32, 64 or 128 rows in shared memory. The words of a row, four columns each, lie permuted
// within each 128 bytes, so that a warp meets every bank once both when it puts a row and when it reads
// sixteen rows of a word in each lane.
struct Strip {
  std::uint32_t* words;  // [rows, pitch]
  int pitch;             // a multiple of 32 words
  int groups;            // rows / 16: 1, 2, 4, 8
  int step = kWarp / groups;

  __device__ __forceinline__ int WordOf(int word, int group) const { return word ^ (group * step); }

  // column: a multiple of 8.
  __device__ __forceinline__ void Put8(int row, int column, uint2 eight) const {
    *reinterpret_cast<uint2*>(words + row * pitch + WordOf(column / 4, row / 16)) = eight;
  }

  // The first `columns` (a multiple of 4) of the first `rows` (a multiple of 16), column c to to[c · stride].
  // The whole block, between barriers.
  __device__ __forceinline__ void StoreTransposed(std::uint8_t* to, std::int64_t stride, int columns,
                                                  int rows) const {
    const int pieces = columns / 4 * groups;
    for (int piece = static_cast<int>(threadIdx.x); piece < pieces; piece += static_cast<int>(blockDim.x)) {
      const int group = piece & (groups - 1);
      const int word = piece * step / kWarp;  // piece / groups
      if (group * 16 >= rows) continue;
      const std::uint32_t* from = words + group * 16 * pitch + WordOf(word, group);
      std::uint32_t columns4[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i, from += 4 * pitch) {
        Transpose4(from[0], from[pitch], from[2 * pitch], from[3 * pitch], columns4[i]);
      }
      std::uint8_t* const out = to + word * 4 * stride + group * 16;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        *reinterpret_cast<uint4*>(out + c * stride) =
            make_uint4(columns4[0][c], columns4[1][c], columns4[2][c], columns4[3][c]);
      }
    }
  }
};

}  // namespace engine::backend::cuda
