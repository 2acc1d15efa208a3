// What the kernels share on the device: element types as fp32, 16-byte accesses, reductions of a fixed order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "engine/base/dtype.h"

namespace engine::backend::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFU;

__device__ __forceinline__ float ToFloat(float x) { return x; }
__device__ __forceinline__ float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float ToFloat(__half x) { return __half2float(x); }

// Rounds to nearest even.
template <typename T>
__device__ __forceinline__ T FromFloat(float x);
template <>
__device__ __forceinline__ float FromFloat<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ __nv_bfloat16 FromFloat<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ __half FromFloat<__half>(float x) {
  return __float2half_rn(x);
}

// x as a tensor of T would hold it.
template <typename T>
__device__ __forceinline__ float Rounded(float x) {
  return ToFloat(FromFloat<T>(x));
}

// Eight consecutive elements as they lie in memory: 16 bytes, or two times 16 of float. Keeping a row in this
// form takes half the registers of its fp32 values.
template <typename T>
struct alignas(16) Pack8 {
  uint4 words[sizeof(T) / 2];
};

// Low and high half of a 32-bit word of two elements.
__device__ __forceinline__ float2 PairToFloat(__nv_bfloat16, std::uint32_t word) {
  return {__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000U)};
}
__device__ __forceinline__ float2 PairToFloat(__half, std::uint32_t word) {
  return __half22float2(reinterpret_cast<const __half2&>(word));
}
__device__ __forceinline__ std::uint32_t PairFromFloat(__nv_bfloat16, float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const std::uint32_t&>(pair);
}
__device__ __forceinline__ std::uint32_t PairFromFloat(__half, float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return reinterpret_cast<const std::uint32_t&>(pair);
}

template <typename T>
__device__ __forceinline__ void Unpack8(const Pack8<T>& pack, float (&x)[8]) {
  if constexpr (sizeof(T) == 4) {
    const uint4 a = pack.words[0];
    const uint4 b = pack.words[1];
    x[0] = __uint_as_float(a.x), x[1] = __uint_as_float(a.y);
    x[2] = __uint_as_float(a.z), x[3] = __uint_as_float(a.w);
    x[4] = __uint_as_float(b.x), x[5] = __uint_as_float(b.y);
    x[6] = __uint_as_float(b.z), x[7] = __uint_as_float(b.w);
  } else {
    const uint4 a = pack.words[0];
    const float2 p0 = PairToFloat(T(), a.x);
    const float2 p1 = PairToFloat(T(), a.y);
    const float2 p2 = PairToFloat(T(), a.z);
    const float2 p3 = PairToFloat(T(), a.w);
    x[0] = p0.x, x[1] = p0.y, x[2] = p1.x, x[3] = p1.y;
    x[4] = p2.x, x[5] = p2.y, x[6] = p3.x, x[7] = p3.y;
  }
}

template <typename T>
__device__ __forceinline__ Pack8<T> ToPack8(const float (&x)[8]) {
  Pack8<T> pack;
  if constexpr (sizeof(T) == 4) {
    pack.words[0] = make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]),
                               __float_as_uint(x[3]));
    pack.words[1] = make_uint4(__float_as_uint(x[4]), __float_as_uint(x[5]), __float_as_uint(x[6]),
                               __float_as_uint(x[7]));
  } else {
    pack.words[0] = make_uint4(PairFromFloat(T(), x[0], x[1]), PairFromFloat(T(), x[2], x[3]),
                               PairFromFloat(T(), x[4], x[5]), PairFromFloat(T(), x[6], x[7]));
  }
  return pack;
}

// `from` and `to` on a 16-byte boundary.
template <typename T>
__device__ __forceinline__ Pack8<T> LoadPack8(const T* from) {
  Pack8<T> pack;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T) / 2); ++i) {
    pack.words[i] = reinterpret_cast<const uint4*>(from)[i];
  }
  return pack;
}
template <typename T>
__device__ __forceinline__ void StorePack8(T* to, const Pack8<T>& pack) {
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T) / 2); ++i) reinterpret_cast<uint4*>(to)[i] = pack.words[i];
}

// The same for bytes that nobody reads again soon (evict-first).
template <typename T>
__device__ __forceinline__ Pack8<T> LoadPack8Streaming(const T* from) {
  Pack8<T> pack;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T) / 2); ++i) {
    pack.words[i] = __ldcs(reinterpret_cast<const uint4*>(from) + i);
  }
  return pack;
}

template <typename T>
__device__ __forceinline__ void Load8(const T* from, float (&x)[8]) {
  Unpack8(LoadPack8(from), x);
}
template <typename T>
__device__ __forceinline__ void Store8(T* to, const float (&x)[8]) {
  StorePack8(to, ToPack8<T>(x));
}

// Sixteen bytes from global to shared memory, both on a 16-byte boundary, past the registers. The bytes are
// there for the thread that asked once it has waited for the group; for others after a barrier besides.
__device__ __forceinline__ void CopyAsync16(void* shared, const void* global) {
  const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}
// Ends a group of copies, which may be empty.
__device__ __forceinline__ void EndCopyGroup() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most kNewer of this thread's groups are under way.
template <int kNewer>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kNewer) : "memory");
}

// Relative error 2^-11: enough where the result is rounded to 16 bits.
__device__ __forceinline__ float TanhApproximate(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Every lane gets the result. All 32 lanes take part.
__device__ __forceinline__ float WarpSum(float x) {
#pragma unroll
  for (int lane = kWarp / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(kAllLanes, x, lane);
  return x;
}
__device__ __forceinline__ double WarpSum(double x) {
#pragma unroll
  for (int lane = kWarp / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(kAllLanes, x, lane);
  return x;
}
// Not NaN where some lane's is a number: fmaxf drops NaN.
__device__ __forceinline__ float WarpMax(float x) {
#pragma unroll
  for (int lane = kWarp / 2; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, lane));
  return x;
}

// Every thread gets the sum over its block of kThreads. `shared` holds kThreads / 32 numbers; it may be used
// again in the next call: each call begins with a barrier.
template <int kThreads, typename Number>
__device__ __forceinline__ Number BlockSum(Number x, Number* shared) {
  static_assert(kThreads % kWarp == 0);
  x = WarpSum(x);
  if constexpr (kThreads == kWarp) return x;
  __syncthreads();
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  Number sum = shared[0];
#pragma unroll
  for (int warp = 1; warp < kThreads / kWarp; ++warp) sum += shared[warp];
  return sum;
}

template <int kThreads>
__device__ __forceinline__ float BlockMax(float x, float* shared) {
  static_assert(kThreads % kWarp == 0);
  x = WarpMax(x);
  if constexpr (kThreads == kWarp) return x;
  __syncthreads();
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  float max = shared[0];
#pragma unroll
  for (int warp = 1; warp < kThreads / kWarp; ++warp) max = fmaxf(max, shared[warp]);
  return max;
}

// Calls body(T()) with the C++ type of an element type. False: not one of activations.
template <typename Body>
bool WithElementType(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kF32:
      body(float());
      return true;
    case DType::kBF16:
      body(__nv_bfloat16());
      return true;
    case DType::kF16:
      body(__half());
      return true;
    default:
      return false;
  }
}

}  // namespace engine::backend::cuda
