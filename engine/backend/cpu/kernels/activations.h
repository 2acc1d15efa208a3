// Values and derivatives of the activations (graph/activation.h), free of branches so that loops over them vectorise.
#pragma once

#include <cmath>
#include <numbers>

#include "engine/backend/cpu/kernels/loops.h"
#include "engine/graph/activation.h"

namespace engine::backend::cpu {

// Φ(x), the normal distribution function. In float: the Chebyshev fit of erfc in Numerical Recipes §6.2
// ("erfcc"), relative error 1.2e-7 everywhere, branch-free.
inline double NormalCdf(double x) { return 0.5 * std::erfc(-x * std::numbers::sqrt2 / 2); }
inline float NormalCdf(float x) {
  const float z = std::fabs(x) * 0.707106781F;
  const float t = 1.0F / (1.0F + 0.5F * z);
  float p = 0.17087277F;
  p = p * t - 0.82215223F;
  p = p * t + 1.48851587F;
  p = p * t - 1.13520398F;
  p = p * t + 0.27886807F;
  p = p * t - 0.18628806F;
  p = p * t + 0.09678418F;
  p = p * t + 0.37409196F;
  p = p * t + 1.00002368F;
  p = p * t - 1.26551223F;
  const float tail = 0.5F * t * Exp(p - z * z);
  return x < 0.0F ? tail : 1.0F - tail;
}

// The tanh form through the sigmoid: x/2 · (1 + tanh u) = x · σ(2u), which loses nothing where tanh u is near
// −1.
template <typename T>
struct TanhForm {
  static constexpr T kScale = T(2 * 0.79788456080286535588);  // 2·√(2/π)
  static constexpr T kCubic = T(0.044715);
  static T Value(T x) { return x * Sigmoid(kScale * (x + kCubic * x * x * x)); }
  static T Derivative(T x) {
    const T s = Sigmoid(kScale * (x + kCubic * x * x * x));
    return s + x * s * (T(1) - s) * kScale * (T(1) + T(3) * kCubic * x * x);
  }
};

template <typename T>
struct ErfForm {
  static T Value(T x) { return x * NormalCdf(x); }
  static T Derivative(T x) {
    constexpr T kInverseSqrtTwoPi = T(0.39894228040143267794);
    return NormalCdf(x) + x * kInverseSqrtTwoPi * Exp(T(-0.5) * x * x);
  }
};

template <graph::Activation kKind>
struct ActivationForm {
  using enum graph::Activation;

  template <typename T>
  static T Value(T x) {
    if constexpr (kKind == kRelu) return std::max(x, T(0));
    if constexpr (kKind == kSilu) return x * Sigmoid(x);
    if constexpr (kKind == kQuickGelu) return x * Sigmoid(T(graph::kQuickGeluSlope) * x);
    if constexpr (kKind == kTanh) return std::tanh(x);
    if constexpr (kKind == kSigmoid) return Sigmoid(x);
    if constexpr (kKind == kGeluTanh) return TanhForm<T>::Value(x);
    if constexpr (kKind == kGeluErf) return ErfForm<T>::Value(x);
  }

  template <typename T>
  static T Derivative(T x) {
    if constexpr (kKind == kRelu) {
      return x > T(0) ? T(1) : T(0);
    } else if constexpr (kKind == kTanh) {
      const T y = std::tanh(x);
      return T(1) - y * y;
    } else if constexpr (kKind == kSigmoid) {
      const T s = Sigmoid(x);
      return s * (T(1) - s);
    } else if constexpr (kKind == kGeluTanh) {
      return TanhForm<T>::Derivative(x);
    } else if constexpr (kKind == kGeluErf) {
      return ErfForm<T>::Derivative(x);
    } else {  // of x · σ(slope · x)
      constexpr T kSlope = kKind == kQuickGelu ? T(graph::kQuickGeluSlope) : T(1);
      const T s = Sigmoid(kSlope * x);
      return s + kSlope * x * s * (T(1) - s);
    }
  }
};

}  // namespace engine::backend::cpu
