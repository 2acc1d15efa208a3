// LogitMap (cross_entropy.h) on single logits, in fp32.
#pragma once

#include "engine/backend/cuda/kernels/cross_entropy.h"

namespace engine::backend::cuda {

inline constexpr float kLog2E = 1.44269504F;

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// LogitMap as the kernels compute with it.
struct Mapping {
  float by = 1;
  float cap = 0;
  float into_tanh = 0;    // by / cap
  float inverse_cap = 0;  // 1 / cap, 0 where there is no cap
};

inline Mapping MappingOf(const LogitMap& map) {
  if (map.cap == 0) return {.by = static_cast<float>(map.by)};
  return {.by = static_cast<float>(map.by),
          .cap = static_cast<float>(map.cap),
          .into_tanh = static_cast<float>(map.by / map.cap),
          .inverse_cap = static_cast<float>(1 / map.cap)};
}

// Of numbers that were rounded to 16 bits, 1 − 2/(e^2x + 1), which is off by at most 2⁻²⁰: of a capped logit that is
// 2⁻²⁰ caps. To a softmax absolute errors of logits matter, and a logit of 1 has one of 2⁻¹² or more in 16 bits. tanhf
// costs several times as much, and each row needs it twice.
template <typename T>
__device__ __forceinline__ float TanhOf(float x) {
  if constexpr (sizeof(T) == 4) return tanhf(x);
  return 1.0F - __fdividef(2.0F, Exp2(x * (2 * kLog2E)) + 1.0F);
}

// The logit that the softmax takes, of a product z that was kept as a T.
template <typename T>
__device__ __forceinline__ float Mapped(float z, const Mapping& map) {
  return map.cap > 0 ? map.cap * TanhOf<T>(z * map.into_tanh) : z * map.by;
}

// Its derivative to z, of the mapped logit.
__device__ __forceinline__ float SlopeAt(float mapped, const Mapping& map) {
  const float share = mapped * map.inverse_cap;
  return map.by * (1.0F - share * share);
}

}  // namespace engine::backend::cuda
