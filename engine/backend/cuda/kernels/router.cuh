// What the kernels of routers share: a warp has the numbers of all E experts of a token, its lane those of the experts
// lane, 32 + lane, 64 + lane, …
#pragma once

#include "engine/backend/cuda/kernels/router_score.h"
#include "engine/backend/cuda/kernels/vector.cuh"

namespace engine::backend::cuda {

inline constexpr int kRouterThreads =
    256;  // eight tokens a block, where lanes hold their numbers in registers

// A number for each expert of a lane, kPerLane of them in registers. kPerLane 0: as many as there are, in the shared
// memory of the warp, where they begin at `shared`.
template <typename Number, int kPerLane>
class LaneNumbers {
 public:
  __device__ LaneNumbers(void*, int) {}
  __device__ static constexpr int count() { return kPerLane; }
  __device__ Number& operator[](int i) { return numbers_[i]; }

  // Of expert `expert`, by the lane that has it; every lane calls them. Registers have no addresses, so all are looked at.
  __device__ void Set(int expert, Number value) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (i * kWarp + static_cast<int>(threadIdx.x % kWarp) == expert) numbers_[i] = value;
    }
  }
  __device__ Number Get(int expert) {
    Number value = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (i == expert / kWarp) value = numbers_[i];
    }
    return __shfl_sync(kAllLanes, value, expert % kWarp);
  }

 private:
  Number numbers_[kPerLane];
};

template <typename Number>
class LaneNumbers<Number, 0> {
 public:
  __device__ LaneNumbers(void* shared, int count)
      : numbers_(static_cast<Number*>(shared) + threadIdx.x % kWarp), count_(count) {}
  __device__ int count() const { return count_; }
  __device__ Number& operator[](int i) { return numbers_[i * kWarp]; }

  __device__ void Set(int expert, Number value) {
    if (static_cast<int>(threadIdx.x % kWarp) == expert % kWarp) numbers_[expert / kWarp * kWarp] = value;
  }
  __device__ Number Get(int expert) {
    return __shfl_sync(kAllLanes, numbers_[expert / kWarp * kWarp], expert % kWarp);
  }

 private:
  Number* numbers_;
  int count_;
};

__device__ __forceinline__ float RouterSigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }

// The score of a logit, of those that go by no other logit: all but the softmax.
__device__ __forceinline__ float ScoreAlone(RouterScore score, float logit) {
  if (score == RouterScore::kSigmoid) return RouterSigmoid(logit);
  return sqrtf(fmaxf(logit, 0.0F) + log1pf(expf(-fabsf(logit))));
}

// Its derivative by the logit over the score s, made of s itself: 1 − s of a sigmoid; of s = √log(1 + e^x) it is
// σ(x) / 2s², and σ(x) = 1 − e^(−s²).
__device__ __forceinline__ float RelativeSlope(RouterScore score, float s) {
  if (score == RouterScore::kSigmoid) return 1.0F - s;
  const float square = s * s;
  return square > 0.0F ? -expm1f(-square) / (2.0F * square) : 0.5F;
}

// The sum that scores are divided by: of the chosen, where weights are normalised, and of all in a router's losses. The released
// models' guard keeps scores that are all 0, as sigmoids of logits below -89 are.
__device__ __forceinline__ float GuardedSum(RouterScore score, float sum) {
  return score == RouterScore::kSoftmax ? sum : sum + 1e-20F;
}

// The largest of a token's logits, and Σ exp(logit − largest), or the guarded sum of other scores.
struct ScoreSums {
  float most, sum;
};

// scores = exp(logits[experts] − most), or ScoreAlone of the logits; 0 behind the last expert.
template <int kPerLane>
__device__ __forceinline__ ScoreSums LoadScores(const float* logits, int experts, RouterScore kind,
                                                LaneNumbers<float, kPerLane>* scores) {
  const int lane = threadIdx.x % kWarp;
  ScoreSums sums = {-__int_as_float(0x7F800000), 0};
#pragma unroll
  for (int i = 0; i < scores->count(); ++i) {
    const int expert = i * kWarp + lane;
    if (expert >= experts) continue;
    (*scores)[i] = logits[expert];
    sums.most = fmaxf(sums.most, logits[expert]);
  }
  sums.most = WarpMax(sums.most);
#pragma unroll
  for (int i = 0; i < scores->count(); ++i) {
    float& score = (*scores)[i];
    if (i * kWarp + lane >= experts) {
      score = 0;
    } else {
      score = kind == RouterScore::kSoftmax ? expf(score - sums.most) : ScoreAlone(kind, score);
    }
    sums.sum += score;
  }
  sums.sum = GuardedSum(kind, WarpSum(sums.sum));
  return sums;
}

// Calls launch(numbers a lane as a constant, 0 of many; threads of a block; bytes of shared memory), of a kernel that has
// `arrays` LaneNumbers.
template <typename Launch>
void WithLaneNumbers(int experts, int arrays, const Launch& launch) {
  if (experts <= 32) return launch(std::integral_constant<int, 1>(), kRouterThreads, 0);
  if (experts <= 64) return launch(std::integral_constant<int, 2>(), kRouterThreads, 0);
  if (experts <= 128) return launch(std::integral_constant<int, 4>(), kRouterThreads, 0);
  if (experts <= 256) return launch(std::integral_constant<int, 8>(), kRouterThreads, 0);
  const int padded = (experts + kWarp - 1) / kWarp * kWarp;
  launch(std::integral_constant<int, 0>(), kWarp, arrays * padded * static_cast<int>(sizeof(float)));
}

// Array number `array` of a warp's shared memory, with the numbers of `count` experts a lane.
__device__ __forceinline__ void* LaneArray(float* shared, int array, int count) {
  return shared + array * count * kWarp;
}

}  // namespace engine::backend::cuda
