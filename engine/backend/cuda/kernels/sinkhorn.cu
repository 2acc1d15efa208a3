#include "engine/backend/cuda/kernels/sinkhorn.h"

#include <algorithm>

#include "engine/backend/cuda/kernels/router.cuh"

namespace engine::backend::cuda {
namespace {

constexpr float kSinkhornGuard = 1e-8F;
constexpr int kSinkhornWarps = 32;

// Experts of a lane, with those that fill up the last lanes' share.
template <int kPerLane>
__host__ __device__ constexpr int PerLane(int experts) {
  return kPerLane > 0 ? kPerLane : (experts + kWarp - 1) / kWarp;
}

// A token's exp(logit − the largest), of the experts of a lane.
struct TokenLogits {
  const float* logits;
  int experts;
  float most;

  __device__ float operator()(int expert) const {
    return expert < experts ? expf(logits[expert] - most) : 0.0F;
  }
};

template <int kPerLane>
__device__ __forceinline__ TokenLogits LoadToken(const float* logits, int experts, int per_lane) {
  float most = -__int_as_float(0x7F800000);
#pragma unroll
  for (int i = 0; i < (kPerLane > 0 ? kPerLane : per_lane); ++i) {
    const int expert = i * kWarp + static_cast<int>(threadIdx.x % kWarp);
    if (expert < experts) most = fmaxf(most, logits[expert]);
  }
  return {logits, experts, WarpMax(most)};
}

// d0 of a token: (1/T) / (Σ_e C_e · d1_e + 1e-8).
template <int kPerLane>
__device__ __forceinline__ float FactorOf(const TokenLogits& token, const float* d1, int per_lane,
                                          float share) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < (kPerLane > 0 ? kPerLane : per_lane); ++i) {
    const int expert = i * kWarp + static_cast<int>(threadIdx.x % kWarp);
    sum += token(expert) * d1[expert];
  }
  return share / (WarpSum(sum) + kSinkhornGuard);
}

// A block a sample, a warp a token at a time. kPerLane 0: of many experts, with fewer warps. Shared memory: d1, d1 of the round
// before, and of each warp the sums of its tokens, each of `padded` numbers.
template <int kPerLane>
__global__ void __launch_bounds__(kSinkhornWarps* kWarp)
    SinkhornKernel(const float* __restrict__ logits, int of_sample, int experts, int rounds,
                   float* __restrict__ ranks) {
  extern __shared__ float shared[];
  const int per_lane = PerLane<kPerLane>(experts);
  const int padded = per_lane * kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float* d1 = shared;
  float* before = shared + padded;
  float* const sums = shared + 2 * padded;
  const std::int64_t begin = std::int64_t{blockIdx.x} * of_sample;
  const float share = 1.0F / static_cast<float>(of_sample);
  for (int e = static_cast<int>(threadIdx.x); e < padded; e += static_cast<int>(blockDim.x)) d1[e] = 1;
  __syncthreads();
  for (int round = 0; round < rounds; ++round) {
    LaneNumbers<float, kPerLane> of_warp(sums + warp * padded, per_lane);
#pragma unroll
    for (int i = 0; i < of_warp.count(); ++i) of_warp[i] = 0;
    for (int t = warp; t < of_sample; t += warps) {
      const TokenLogits token = LoadToken<kPerLane>(logits + (begin + t) * experts, experts, per_lane);
      const float d0 = FactorOf<kPerLane>(token, d1, per_lane, share);
#pragma unroll
      for (int i = 0; i < of_warp.count(); ++i) of_warp[i] += d0 * token(i * kWarp + lane);
    }
    if constexpr (kPerLane > 0) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) sums[warp * padded + i * kWarp + lane] = of_warp[i];
    }
    __syncthreads();
    float* const next = before;
    before = d1;
    d1 = next;
    for (int e = static_cast<int>(threadIdx.x); e < padded; e += static_cast<int>(blockDim.x)) {
      float sum = 0;
      for (int w = 0; w < warps; ++w) sum += sums[w * padded + e];
      d1[e] = e < experts ? 1.0F / static_cast<float>(experts) / (sum + kSinkhornGuard) : 0.0F;
    }
    __syncthreads();
  }
  for (int t = warp; t < of_sample; t += warps) {
    const std::int64_t at = (begin + t) * experts;
    const TokenLogits token = LoadToken<kPerLane>(logits + at, experts, per_lane);
    const float d0 = FactorOf<kPerLane>(token, before, per_lane, share);  // of the last round
    for (int e = lane; e < experts; e += kWarp) ranks[at + e] = d0 * token(e) * d1[e];
  }
}

template <int kPerLane>
void LaunchSinkhornOf(const float* logits, std::int64_t samples, std::int64_t of_sample, int experts,
                      int rounds, float* ranks, cudaStream_t stream) {
  constexpr int kNumbers =
      (48 << 10) / static_cast<int>(sizeof(float));  // of shared memory that any block may have
  const int padded = PerLane<kPerLane>(experts) * kWarp;
  const int warps = std::clamp(kNumbers / padded - 2, 1, kSinkhornWarps);
  const int shared_bytes = (2 + warps) * padded * static_cast<int>(sizeof(float));
  SinkhornKernel<kPerLane><<<static_cast<unsigned>(samples), warps * kWarp, shared_bytes, stream>>>(
      logits, static_cast<int>(of_sample), experts, rounds, ranks);
}

}  // namespace

void LaunchSinkhorn(const float* logits, std::int64_t samples, std::int64_t of_sample, int experts,
                    int rounds, float* ranks, cudaStream_t stream) {
  if (samples * of_sample == 0) return;
  const auto launch = [&](auto per_lane) {
    LaunchSinkhornOf<decltype(per_lane)::value>(logits, samples, of_sample, experts, rounds, ranks, stream);
  };
  if (experts <= 32) return launch(std::integral_constant<int, 1>());
  if (experts <= 64) return launch(std::integral_constant<int, 2>());
  if (experts <= 128) return launch(std::integral_constant<int, 4>());
  if (experts <= 256) return launch(std::integral_constant<int, 8>());
  launch(std::integral_constant<int, 0>());
}

}  // namespace engine::backend::cuda
