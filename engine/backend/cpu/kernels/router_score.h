// The scores that routers make of logits (engine/ops/route.cpp).
#pragma once

#include <cstdint>
#include <string>

#include "engine/backend/cpu/kernels/loops.h"
#include "engine/graph/graph.h"

namespace engine::backend::cpu {

enum class RouterScore : std::uint8_t { kSoftmax, kSigmoid, kSqrtSoftplus };

inline RouterScore RouterScoreOf(const graph::Attributes& attributes) {
  const std::string& score = attributes.String("score");
  if (score == "softmax") return RouterScore::kSoftmax;
  return score == "sigmoid" ? RouterScore::kSigmoid : RouterScore::kSqrtSoftplus;
}

// The score of a logit, of those that go by no other logit: all but the softmax.
template <typename T>
T ScoreAlone(RouterScore score, T logit) {
  if (score == RouterScore::kSigmoid) return Sigmoid(logit);
  return std::sqrt(std::max(logit, T(0)) + std::log1p(Exp(-std::abs(logit))));
}

// Its derivative by the logit, made of the score s itself: s · (1 − s) of a sigmoid; of s = √log(1 + e^x) it is
// σ(x) / 2s, and σ(x) = 1 − e^(−s²).
template <typename T>
T SlopeAlone(RouterScore score, T s) {
  if (score == RouterScore::kSigmoid) return s * (T(1) - s);
  return s > T(0) ? -std::expm1(-s * s) / (T(2) * s) : T(0);
}

// The sum that scores are divided by: of the chosen, where weights are normalised, and of all in a router's losses. The released
// models' guard keeps scores that are all 0, as sigmoids of logits below -89 are in float32.
template <typename T>
T GuardedSum(RouterScore score, T sum) {
  return score == RouterScore::kSoftmax ? sum : sum + static_cast<T>(1e-20);
}

}  // namespace engine::backend::cpu
