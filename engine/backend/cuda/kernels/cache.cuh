// Shared by the kernels over caches (cached_attention.cu, cached_latent_attention.cu): which keys a query sees, and the form in
// which a cache keeps its numbers, which is that of the activations or e4m3.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "engine/backend/cuda/kernels/tiles.cuh"
#include "engine/backend/cuda/kernels/vector.cuh"

namespace engine::backend::cuda {

// Where a query's keys are: of positions [first, end), of one sample.
struct Seen {
  std::int64_t first, end;
};
// window 0: all of them.
__device__ __forceinline__ Seen SeenBy(std::int64_t window, std::int64_t position) {
  const std::int64_t first = window > 0 ? max(std::int64_t{0}, position - window + 1) : 0;
  return {first, position + 1};
}

using E4M3 = __nv_fp8_e4m3;

__device__ __forceinline__ float ToFloat(E4M3 x) { return static_cast<float>(x); }

// To nearest even; in e4m3 what is beyond ±448 becomes that.
template <typename Stored, typename T>
__device__ __forceinline__ Stored ToKeep(T x) {
  if constexpr (std::is_same_v<Stored, T>) {
    return x;
  } else {
    Stored kept;
    kept.__x = __nv_cvt_float_to_fp8(ToFloat(x), __NV_SATFINITE, __NV_E4M3);
    return kept;
  }
}

// Two numbers of e4m3 in T.
template <typename T>
__device__ __forceinline__ std::uint32_t WidenedPair(std::uint32_t two) {
  const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(two), __NV_E4M3);
  if constexpr (std::is_same_v<T, __half>) {
    return halves.x | static_cast<std::uint32_t>(halves.y) << 16;
  } else {
    const float2 pair = __half22float2(__half2(halves));
    return PairFromFloat(T(), pair.x, pair.y);
  }
}
// Two numbers of T as a cache in e4m3 keeps them.
template <typename T>
__device__ __forceinline__ std::uint32_t RoundedPair(std::uint32_t two) {
  return WidenedPair<T>(__nv_cvt_float2_to_fp8x2(PairToFloat(T(), two), __NV_SATFINITE, __NV_E4M3));
}

// A row of a tile in shared memory, of kWidth numbers of T. Where the cache is narrow, its bytes are copied into the second half
// of the row, and widened from there once they are there.
template <typename T, int kWidth>
struct NarrowRow {
  static constexpr int kUnits = kWidth / 16;  // of 16 bytes in the cache
  static_assert(kWidth % 16 == 0);

  __device__ __forceinline__ static uint4* UnitAt(T* row, int unit) {
    return reinterpret_cast<uint4*>(reinterpret_cast<unsigned char*>(row) + kWidth) + unit;
  }
  // All lanes that write to a row have read what they write of it, and so have the others.
  __device__ __forceinline__ static void Write(T* row, int unit, const uint4& kept) {
    auto* const to = reinterpret_cast<uint4*>(row) + 2 * unit;
    to[0] = {WidenedPair<T>(kept.x & 0xFFFFU), WidenedPair<T>(kept.x >> 16), WidenedPair<T>(kept.y & 0xFFFFU),
             WidenedPair<T>(kept.y >> 16)};
    to[1] = {WidenedPair<T>(kept.z & 0xFFFFU), WidenedPair<T>(kept.z >> 16), WidenedPair<T>(kept.w & 0xFFFFU),
             WidenedPair<T>(kept.w >> 16)};
  }
  // The new token's row, which is copied as it is: as the cache will have it. By the lanes of a warp.
  __device__ __forceinline__ static void Round(T* row, int lane) {
    auto* const pairs = reinterpret_cast<std::uint32_t*>(row);
    for (int i = lane; i < kWidth / 2; i += kWarp) pairs[i] = RoundedPair<T>(pairs[i]);
  }
};

}  // namespace engine::backend::cuda
