// What the kernels of the optimizers share: rounding by draws, four elements at a time, and the choice of a kernel
// by the buffers' types. The buffers are flat and of one length.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "engine/backend/cuda/kernels/optimizer.h"
#include "engine/backend/cuda/kernels/vector.cuh"

namespace engine::backend::cuda {

inline constexpr int kThreads = 256;

__device__ __forceinline__ std::int64_t ThreadIndex() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ std::int64_t ThreadCount() {
  return static_cast<std::int64_t>(gridDim.x) * blockDim.x;
}

// Four numbers as they lie in memory.
template <typename T>
using Four = std::conditional_t<sizeof(T) == 4, float4, uint2>;

// Numbers in fp32 are worked on where they are: copies of them cost registers that the kernel has not.
__device__ __forceinline__ float4& ToFloats(float4& x) { return x; }
__device__ __forceinline__ float4 ToFloats(uint2 x) {
  const float2 low = PairToFloat(__nv_bfloat16(), x.x);
  const float2 high = PairToFloat(__nv_bfloat16(), x.y);
  return {low.x, low.y, high.x, high.y};
}

// The bits of x as bf16, `noise` being 16 random bits. A sum past the largest number is an infinity.
__device__ __forceinline__ std::uint32_t RoundedBits(float x, std::uint32_t noise) {
  const std::uint32_t bits = __float_as_uint(x);
  return isnan(x) ? 0x7FFFU : (bits + noise) >> 16;
}
__device__ __forceinline__ __nv_bfloat16 Rounded(float x, std::uint32_t noise) {
  return __ushort_as_bfloat16(static_cast<unsigned short>(RoundedBits(x, noise)));
}
// Four of them, by the bits from `shift` up of each word.
template <typename Words>
__device__ __forceinline__ uint2 RoundedFour(const float4& x, const Words& words, int shift) {
  const auto noise = [&](int i) { return words[i] >> shift & 0xFFFFU; };
  return make_uint2(RoundedBits(x.x, noise(0)) | RoundedBits(x.y, noise(1)) << 16,
                    RoundedBits(x.z, noise(2)) | RoundedBits(x.w, noise(3)) << 16);
}

// The word of element `index` of a stream of draws.
__device__ __forceinline__ std::uint32_t Word(const PhiloxKey& key, std::int64_t index, std::uint64_t epoch) {
  const auto words = Philox4x32(key, static_cast<std::uint64_t>(index) / 4, epoch);
  const std::uint32_t low = index % 2 == 0 ? words[0] : words[1];
  const std::uint32_t high = index % 2 == 0 ? words[2] : words[3];
  return index % 4 < 2 ? low : high;
}

// Writes the weights w[4·at] to w[4·at + 3]; then a single one.
__device__ __forceinline__ void StoreWeights(float* w, std::int64_t at, const float4& new_w,
                                             const UpdateRounding&, std::uint64_t) {
  __stcg(reinterpret_cast<float4*>(w) + at, new_w);
}
__device__ __forceinline__ void StoreWeights(__nv_bfloat16* w, std::int64_t at, const float4& new_w,
                                             const UpdateRounding& rounding, std::uint64_t epoch) {
  const auto block = static_cast<std::uint64_t>(rounding.offset / 4 + at);
  __stcg(reinterpret_cast<uint2*>(w) + at, RoundedFour(new_w, Philox4x32(rounding.weights, block, epoch), 0));
}
__device__ __forceinline__ void StoreWeight(float* w, std::int64_t i, float new_w, const UpdateRounding&,
                                            std::uint64_t) {
  w[i] = new_w;
}
__device__ __forceinline__ void StoreWeight(__nv_bfloat16* w, std::int64_t i, float new_w,
                                            const UpdateRounding& rounding, std::uint64_t epoch) {
  w[i] = Rounded(new_w, Word(rounding.weights, rounding.offset + i, epoch) & 0xFFFFU);
}

inline bool Aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

// Blocks for `count` elements at `per_thread` each, no more than `most`.
inline int Blocks(std::int64_t count, std::int64_t per_thread, std::int64_t most) {
  const std::int64_t needed = (count + kThreads * per_thread - 1) / (kThreads * per_thread);
  return static_cast<int>(std::clamp<std::int64_t>(needed, 1, most));
}

// Whether a kernel may take four elements at a time: all buffers lie on 16 bytes, and the four elements of a Philox
// block together.
inline bool IsFast(const UpdateBuffers& buffers, const UpdateRounding& rounding) {
  const bool draws = buffers.weight_dtype != DType::kF32 || buffers.state_dtype != DType::kF32;
  bool aligned = Aligned(buffers.weights) && Aligned(buffers.grad) && Aligned(buffers.parameter);
  for (const void* state : buffers.states) aligned = aligned && Aligned(state);
  return aligned && (!draws || rounding.offset % 4 == 0);
}

// Calls launch(weight, gradient, state, parameter) with a number of each buffer's type; the parameter's is float where
// there is none beside the weights.
template <typename Launch>
void WithUpdateTypes(const UpdateBuffers& buffers, Launch launch) {
  const auto with = [](DType dtype, auto use) {
    if (dtype == DType::kF32) {
      use(float());
    } else {
      use(__nv_bfloat16());
    }
  };
  const auto launch_of = [&](auto weight, auto parameter) {
    with(buffers.grad_dtype, [&](auto grad) {
      with(buffers.state_dtype, [&](auto state) { launch(weight, grad, state, parameter); });
    });
  };
  if (buffers.weight_dtype == DType::kBF16) {
    launch_of(__nv_bfloat16(), float());
  } else if (buffers.parameter == nullptr) {
    launch_of(float(), float());
  } else if (buffers.parameter_dtype == DType::kF16) {
    launch_of(float(), __half());
  } else {
    launch_of(float(), __nv_bfloat16());
  }
}

}  // namespace engine::backend::cuda
