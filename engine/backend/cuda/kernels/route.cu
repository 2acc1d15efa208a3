#include "engine/backend/cuda/kernels/route.h"

#include <climits>

#include "engine/backend/cuda/kernels/elementwise.cuh"
#include "engine/backend/cuda/kernels/router.cuh"

namespace engine::backend::cuda {
namespace {

// Ranks as integers of the same order, so that a warp finds the largest by one instruction. kForbidden: of experts that
// may not be chosen, below all others; kChosen above all others.
using Rank = std::uint32_t;
constexpr Rank kForbidden = 0;
constexpr Rank kChosen = 0xFFFFFFFFU;

__device__ __forceinline__ Rank RankOf(float x) {
  const std::uint32_t bits = __float_as_uint(x + 0.0F);  // −0 becomes 0
  const std::uint32_t ordered = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  return min(max(ordered, kForbidden + 1), kChosen - 1);
}
__device__ __forceinline__ float FloatOf(Rank rank) {
  return __uint_as_float((rank & 0x80000000U) != 0 ? rank ^ 0x80000000U : ~rank);
}

struct Pick {
  Rank rank;
  int index;
};
constexpr Pick kBeforeAll = {kChosen, INT_MAX};

// Of the indices in [first, end) the one that follows `last` in falling order of ranks, of equals the smaller index
// first. Every lane gets it.
template <int kPerLane>
__device__ __forceinline__ Pick Next(LaneNumbers<Rank, kPerLane>* ranks, Pick last, int first, int end) {
  const int lane = threadIdx.x % kWarp;
  Pick best = {kForbidden, INT_MAX};
#pragma unroll
  for (int i = 0; i < ranks->count(); ++i) {
    const int at = i * kWarp + lane;
    const Rank rank = (*ranks)[i];
    const bool follows = rank < last.rank || (rank == last.rank && at > last.index);
    if (at >= first && at < end && follows && (best.index == INT_MAX || rank > best.rank)) best = {rank, at};
  }
  const Rank rank = __reduce_max_sync(kAllLanes, best.rank);
  return {rank, __reduce_min_sync(kAllLanes, best.rank == rank ? best.index : INT_MAX)};
}

// Forbids the experts of all groups but the kept ones. `of_group` is space for a number of each group.
template <int kPerLane>
__device__ __forceinline__ void ForbidOtherGroups(const Routing& routing, LaneNumbers<Rank, kPerLane>* ranks,
                                                  LaneNumbers<Rank, kPerLane>* of_group) {
  const int lane = threadIdx.x % kWarp;
  const int size = routing.experts / routing.groups;
#pragma unroll
  for (int i = 0; i < of_group->count(); ++i) (*of_group)[i] = kForbidden;
  for (int group = 0; group < routing.groups; ++group) {
    float sum = 0;
    Pick pick = kBeforeAll;
    for (int b = 0; b < routing.best; ++b) {
      pick = Next(ranks, pick, group * size, (group + 1) * size);
      sum += FloatOf(pick.rank);
    }
    of_group->Set(group, RankOf(sum));
  }
  Pick pick = kBeforeAll;
  for (int n = 0; n < routing.kept; ++n) {
    pick = Next(of_group, pick, 0, routing.groups);
    of_group->Set(pick.index, kChosen);
  }
  for (int group = 0; group < routing.groups; ++group) {
    if (of_group->Get(group) == kChosen) continue;
#pragma unroll
    for (int i = 0; i < ranks->count(); ++i) {
      const int expert = i * kWarp + lane;
      if (expert >= group * size && expert < (group + 1) * size) (*ranks)[i] = kForbidden;
    }
  }
}

// The number of a local token among all tokens.
__device__ std::int64_t LogicalToken(const LogicalDims& tokens, std::int64_t local) {
  std::int64_t index = 0;
  std::int64_t stride = 1;
#pragma unroll
  for (int i = LogicalDims::kMaxDims - 1; i >= 0; --i) {
    if (i >= tokens.rank) continue;
    std::int64_t at;
    local = Divide(local, tokens.dims[i].local, &at);
    index += LogicalIndex(tokens.dims[i], at) * stride;
    stride *= tokens.dims[i].logical;
  }
  return index;
}

__device__ __noinline__ float ForcedRank(const Routing& routing, std::int64_t token, int expert) {
  const std::int64_t experts = routing.experts;
  if (routing.forced == ForcedRoute::kEven) {
    const std::int64_t from = ((expert - token * routing.k) % experts + experts) % experts;
    return -static_cast<float>(from);
  }
  const auto index = static_cast<std::uint64_t>(token * experts + expert);
  const auto words = Philox4x32(routing.key, index / 4, 0);
  const std::uint32_t low = index % 2 == 0 ? words[0] : words[1];
  const std::uint32_t high = index % 2 == 0 ? words[2] : words[3];
  const double uniform = UniformFromWord(index % 4 < 2 ? low : high);
  const double draw = -log(fmax(uniform, 1e-12));
  return static_cast<float>(-draw * pow(static_cast<double>(expert + 1), 0.7));
}

__device__ __forceinline__ std::int64_t TokenOfWarp() {
  return static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / kWarp) + threadIdx.x / kWarp;
}

// kForced: its calls would take the registers of the kernel without it.
template <int kPerLane, bool kForced>
__global__ void __launch_bounds__(kRouterThreads)
    RouteKernel(const __grid_constant__ Routing routing, std::int64_t tokens,
                const float* __restrict__ logits, const float* __restrict__ bias,
                const float* __restrict__ given, std::int32_t* __restrict__ choice,
                float* __restrict__ weight) {
  extern __shared__ float shared[];
  const std::int64_t token = TokenOfWarp();
  if (token >= tokens) return;
  const int lane = threadIdx.x % kWarp;
  const int experts = routing.experts;
  const int per_lane = (experts + kWarp - 1) / kWarp;
  LaneNumbers<float, kPerLane> scores(LaneArray(shared, 0, per_lane), per_lane);
  LaneNumbers<Rank, kPerLane> ranks(LaneArray(shared, 1, per_lane), per_lane);
  const ScoreSums sums = LoadScores(logits + token * experts, experts, routing.score, &scores);
#pragma unroll
  for (int i = 0; i < ranks.count(); ++i) {
    const int expert = i * kWarp + lane;
    if (routing.score == RouterScore::kSoftmax) scores[i] /= sums.sum;
    float rank = scores[i] + (bias != nullptr && expert < experts ? bias[expert] : 0.0F);
    if (given != nullptr && expert < experts) rank = given[token * experts + expert];
    ranks[i] = RankOf(rank);
  }
  if (routing.groups > 1) {
    LaneNumbers<Rank, kPerLane> of_group(LaneArray(shared, 2, per_lane), per_lane);
    ForbidOtherGroups(routing, &ranks, &of_group);
  }
  if constexpr (kForced) {
    const std::int64_t logical = LogicalToken(routing.tokens, token);
#pragma unroll
    for (int i = 0; i < ranks.count(); ++i) ranks[i] = RankOf(ForcedRank(routing, logical, i * kWarp + lane));
  }

  std::int32_t* const chosen = choice + token * routing.k;
  float* const weights = weight + token * routing.k;
  Pick pick = kBeforeAll;
  float sum = 0;
  for (int j = 0; j < routing.k; ++j) {
    pick = Next(&ranks, pick, 0, experts);
    const float score = scores.Get(pick.index);
    sum += score;
    if (lane != j % kWarp) continue;
    chosen[j] = pick.index;
    weights[j] = score;
  }
  const float factor = routing.scale / (routing.normalize ? GuardedSum(routing.score, sum) : 1.0F);
  for (int j = lane; j < routing.k; j += kWarp) weights[j] *= factor;  // the lane's own
}

// With Z the sum of the chosen scores s (1 where they are not normalised): d_s = scale/Z · (d_w − Σ_j d_w_j s_j/Z), then
// through the score.
template <int kPerLane>
__global__ void __launch_bounds__(kRouterThreads)
    RouteGradKernel(const __grid_constant__ Routing routing, std::int64_t tokens,
                    const float* __restrict__ logits, const std::int32_t* __restrict__ choice,
                    const float* __restrict__ d_weight, float* __restrict__ d_logits) {
  extern __shared__ float shared[];
  const std::int64_t token = TokenOfWarp();
  if (token >= tokens) return;
  const int lane = threadIdx.x % kWarp;
  const int experts = routing.experts;
  const int per_lane = (experts + kWarp - 1) / kWarp;
  const float* const of_token = logits + token * experts;
  LaneNumbers<float, kPerLane> scores(LaneArray(shared, 0, per_lane), per_lane);
  LaneNumbers<float, kPerLane> d(LaneArray(shared, 1, per_lane), per_lane);
  const ScoreSums sums = LoadScores(of_token, experts, routing.score, &scores);
#pragma unroll
  for (int i = 0; i < d.count(); ++i) {
    if (routing.score == RouterScore::kSoftmax) scores[i] /= sums.sum;
    d[i] = 0;
  }
  const std::int32_t* const chosen = choice + token * routing.k;
  const float* const d_weights = d_weight + token * routing.k;
  float sum = 0;
  float mean = 0;
  for (int j = lane; j < routing.k; j += kWarp) {
    const float logit = of_token[chosen[j]];
    const float score = routing.score == RouterScore::kSoftmax ? expf(logit - sums.most) / sums.sum
                                                               : ScoreAlone(routing.score, logit);
    sum += score;
    mean += d_weights[j] * score;
  }
  sum = GuardedSum(routing.score, WarpSum(sum));
  mean = routing.normalize ? WarpSum(mean) / sum : 0.0F;
  const float factor = routing.scale / (routing.normalize ? sum : 1.0F);
  for (int j = 0; j < routing.k; ++j) d.Set(chosen[j], factor * (d_weights[j] - mean));

  float inner = 0;
#pragma unroll
  for (int i = 0; i < d.count(); ++i) inner += d[i] * scores[i];
  inner = WarpSum(inner);
#pragma unroll
  for (int i = 0; i < d.count(); ++i) {
    const int expert = i * kWarp + lane;
    const float score = scores[i];
    const float through =
        routing.score == RouterScore::kSoftmax ? d[i] - inner : d[i] * RelativeSlope(routing.score, score);
    if (expert < experts) d_logits[token * experts + expert] = score * through;
  }
}

unsigned Blocks(std::int64_t tokens, int threads) {
  return static_cast<unsigned>(CeilDivide(tokens, threads / kWarp));
}

}  // namespace

void LaunchRoute(const Routing& routing, std::int64_t tokens, const float* logits, const float* bias,
                 const float* ranks, std::int32_t* choice, float* weight, cudaStream_t stream) {
  if (tokens == 0) return;
  WithLaneNumbers(routing.experts, 3, [&](auto per_lane, int threads, int shared_bytes) {
    constexpr int kPerLane = decltype(per_lane)::value;
    const auto kernel =
        routing.forced == ForcedRoute::kNone ? RouteKernel<kPerLane, false> : RouteKernel<kPerLane, true>;
    kernel<<<Blocks(tokens, threads), threads, shared_bytes, stream>>>(routing, tokens, logits, bias, ranks,
                                                                       choice, weight);
  });
}

void LaunchRouteGrad(const Routing& routing, std::int64_t tokens, const float* logits,
                     const std::int32_t* choice, const float* d_weight, float* d_logits,
                     cudaStream_t stream) {
  if (tokens == 0) return;
  WithLaneNumbers(routing.experts, 2, [&](auto per_lane, int threads, int shared_bytes) {
    RouteGradKernel<decltype(per_lane)::value><<<Blocks(tokens, threads), threads, shared_bytes, stream>>>(
        routing, tokens, logits, choice, d_weight, d_logits);
  });
}

}  // namespace engine::backend::cuda
