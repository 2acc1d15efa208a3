// Activations on the device (graph/activation.h).
#pragma once

#include "engine/backend/cuda/kernels/vector.cuh"
#include "engine/graph/activation.h"

namespace engine::backend::cuda {

inline constexpr float kGeluScale = 0.79788456080286535588F;  // √(2/π)
inline constexpr float kGeluCubic = 0.044715F;

// (1 + tanh u) / 2 = σ(2u). In fp32 by the exponential, which loses nothing where tanh u is near −1.
template <bool kExact>
__device__ __forceinline__ float HalfOnePlusTanh(float u) {
  if constexpr (kExact) {
    return 1.0F / (1.0F + expf(-2.0F * u));
  } else {
    return 0.5F + 0.5F * TanhApproximate(u);
  }
}

// Value and derivative. kExact: for fp32 tensors; otherwise approximations well below the rounding to 16 bits
// of results near 1.
template <bool kExact, bool kTanh>
__device__ __forceinline__ void GeluOf(float x, float* value, float* derivative) {
  if constexpr (kTanh) {
    const float square = x * x;
    const float s = HalfOnePlusTanh<kExact>(kGeluScale * x * (1.0F + kGeluCubic * square));
    *value = x * s;
    *derivative = s + *value * (1.0F - s) * (2.0F * kGeluScale * (1.0F + 3.0F * kGeluCubic * square));
  } else {
    constexpr float kInverseSqrtTwoPi = 0.39894228040143267794F;
    constexpr float kInverseSqrtTwo = 0.70710678118654752440F;
    const float cdf = kExact ? 0.5F * erfcf(-kInverseSqrtTwo * x) : 0.5F + 0.5F * erff(kInverseSqrtTwo * x);
    const float density = kInverseSqrtTwoPi * (kExact ? expf(-0.5F * x * x) : __expf(-0.5F * x * x));
    *value = x * cdf;
    *derivative = cdf + x * density;
  }
}

template <bool kExact>
__device__ __forceinline__ float Sigmoid(float x) {
  return kExact ? 1.0F / (1.0F + expf(-x)) : __fdividef(1.0F, 1.0F + __expf(-x));
}

// Value and derivative; kExact as of GeluOf.
template <graph::Activation kKind, bool kExact>
__device__ __forceinline__ void ActivationOf(float x, float* value, float* derivative) {
  using enum graph::Activation;
  if constexpr (kKind == kRelu) {
    *value = fmaxf(x, 0.0F);
    *derivative = x > 0.0F ? 1.0F : 0.0F;
  } else if constexpr (kKind == kTanh) {
    *value = tanhf(x);
    *derivative = 1.0F - *value * *value;
  } else if constexpr (kKind == kSigmoid) {
    *value = Sigmoid<kExact>(x);
    *derivative = *value * (1.0F - *value);
  } else if constexpr (kKind == kGeluTanh || kKind == kGeluErf) {
    GeluOf<kExact, kKind == kGeluTanh>(x, value, derivative);
  } else {  // x · σ(slope · x)
    static_assert(kKind == kSilu || kKind == kQuickGelu);
    constexpr float kSlope = kKind == kSilu ? 1.0F : static_cast<float>(graph::kQuickGeluSlope);
    const float s = Sigmoid<kExact>(kSlope * x);
    *value = x * s;
    *derivative = s + kSlope * *value * (1.0F - s);
  }
}

}  // namespace engine::backend::cuda
