#include "engine/backend/cuda/kernels/router_loss.h"

#include "engine/backend/cuda/kernels/optimizer.h"
#include "engine/backend/cuda/kernels/router.cuh"
#include "engine/backend/cuda/profile/column_sums.h"
#include "engine/plan/control.h"

namespace engine::backend::cuda {
namespace {

// The two losses, each with what it makes of a token's scores: `scores` as LoadScores gives them.
struct Balance {
  const float* count;  // [groups, E]

  // Σ_e count_e · p_e
  template <int kPerLane>
  __device__ float Term(const RouterTokens& tokens, std::int64_t token, const ScoreSums& sums,
                        LaneNumbers<float, kPerLane>* scores) const {
    const float* const of_group = count + token / tokens.of_group * tokens.experts;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < scores->count(); ++i) {
      const int expert = i * kWarp + static_cast<int>(threadIdx.x % kWarp);
      if (expert < tokens.experts) sum += of_group[expert] * ((*scores)[i] / sums.sum);
    }
    return WarpSum(sum);
  }
  __device__ double Loss(float term) const { return static_cast<double>(term); }
  // The derivative of p_e by its own logit, less what the sum adds: p_e of a softmax; s'/Σ = p · s'/s of other scores.
  __device__ float Gradient(const RouterTokens& tokens, std::int64_t token, int expert, const ScoreSums& sums,
                            float score, float term) const {
    const float p = score / sums.sum;
    const float slope = tokens.score == RouterScore::kSoftmax ? p : p * RelativeSlope(tokens.score, score);
    return slope * (count[token / tokens.of_group * tokens.experts + expert] - term);
  }
};

// −Σ_e p_e · log p_e
struct Entropy {
  template <int kPerLane>
  __device__ float Term(const RouterTokens&, std::int64_t, const ScoreSums& sums,
                        LaneNumbers<float, kPerLane>* scores) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < scores->count(); ++i) {
      const float p = (*scores)[i] / sums.sum;
      if (p > 0.0F) sum -= p * logf(p);
    }
    return WarpSum(sum);
  }
  __device__ double Loss(float term) const { return static_cast<double>(term); }
};

struct ZLoss {
  // log Σ_e exp(logit_e)
  template <int kPerLane>
  __device__ float Term(const RouterTokens&, std::int64_t, const ScoreSums& sums,
                        LaneNumbers<float, kPerLane>*) const {
    return sums.most + logf(sums.sum);
  }
  __device__ double Loss(float term) const { return static_cast<double>(term) * static_cast<double>(term); }
  __device__ float Gradient(const RouterTokens&, std::int64_t, int, const ScoreSums& sums, float score,
                            float term) const {
    return 2.0F * term * (score / sums.sum);
  }
};

// A warp a token at a time. Each block leaves the sum of its tokens' losses, times `factor`, in partial[block].
template <int kPerLane, typename Kind>
__global__ void __launch_bounds__(kRouterThreads)
    RouterLossKernel(const RouterTokens tokens, Kind kind, double factor, double* __restrict__ partial) {
  extern __shared__ float shared[];
  __shared__ double of_warp[kRouterThreads / kWarp];
  const int per_lane = (tokens.experts + kWarp - 1) / kWarp;
  const int warps = blockDim.x / kWarp;
  const int warp = threadIdx.x / kWarp;
  LaneNumbers<float, kPerLane> scores(shared, per_lane);
  double sum = 0;
  for (std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * warps + warp; token < tokens.tokens;
       token += static_cast<std::int64_t>(gridDim.x) * warps) {
    const ScoreSums sums =
        LoadScores(tokens.logits + token * tokens.experts, tokens.experts, tokens.score, &scores);
    sum += kind.Loss(kind.Term(tokens, token, sums, &scores));
  }
  if (threadIdx.x % kWarp == 0) of_warp[warp] = sum;  // every lane has it
  __syncthreads();
  if (threadIdx.x != 0) return;
  double of_block = 0;
  for (int w = 0; w < warps; ++w) of_block += of_warp[w];
  partial[blockIdx.x] = factor * of_block;
}

template <int kPerLane, typename Kind>
__global__ void __launch_bounds__(kRouterThreads)
    RouterLossGradKernel(const RouterTokens tokens, Kind kind, double factor,
                         const double* __restrict__ control, float* __restrict__ d_logits) {
  extern __shared__ float shared[];
  const std::int64_t token =
      static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  if (token >= tokens.tokens) return;
  const int per_lane = (tokens.experts + kWarp - 1) / kWarp;
  LaneNumbers<float, kPerLane> scores(shared, per_lane);
  const ScoreSums sums =
      LoadScores(tokens.logits + token * tokens.experts, tokens.experts, tokens.score, &scores);
  const float term = kind.Term(tokens, token, sums, &scores);
  const auto scale = static_cast<float>(factor * (control != nullptr ? control[plan::kLossScale] : 1.0));
#pragma unroll
  for (int i = 0; i < scores.count(); ++i) {
    const int expert = i * kWarp + static_cast<int>(threadIdx.x % kWarp);
    if (expert >= tokens.experts) continue;
    d_logits[token * tokens.experts + expert] =
        scale * kind.Gradient(tokens, token, expert, sums, scores[i], term);
  }
}

template <typename Kind>
void LaunchLoss(const RouterTokens& tokens, const Kind& kind, double factor, bool accumulate, double* partial,
                int blocks, double* loss, cudaStream_t stream) {
  WithLaneNumbers(tokens.experts, 1, [&](auto per_lane, int threads, int shared_bytes) {
    RouterLossKernel<decltype(per_lane)::value, Kind>
        <<<blocks, threads, shared_bytes, stream>>>(tokens, kind, factor, partial);
  });
  SumPartials(partial, blocks, accumulate, loss, stream);
}

template <typename Kind>
void LaunchGrad(const RouterTokens& tokens, const Kind& kind, double factor, const double* control,
                float* d_logits, cudaStream_t stream) {
  if (tokens.tokens == 0) return;
  WithLaneNumbers(tokens.experts, 1, [&](auto per_lane, int threads, int shared_bytes) {
    const auto blocks = static_cast<unsigned>(CeilDivide(tokens.tokens, threads / kWarp));
    RouterLossGradKernel<decltype(per_lane)::value, Kind>
        <<<blocks, threads, shared_bytes, stream>>>(tokens, kind, factor, control, d_logits);
  });
}

// log Σ exp is the softmax's.
RouterTokens OfSoftmax(RouterTokens tokens) {
  tokens.score = RouterScore::kSoftmax;
  return tokens;
}

}  // namespace

void LaunchBalanceLoss(const RouterTokens& tokens, const float* count, double factor, bool accumulate,
                       double* partial, int blocks, double* loss, cudaStream_t stream) {
  LaunchLoss(tokens, Balance{count}, factor, accumulate, partial, blocks, loss, stream);
}

void LaunchRouterZLoss(const RouterTokens& tokens, bool accumulate, double* partial, int blocks, double* loss,
                       cudaStream_t stream) {
  LaunchLoss(OfSoftmax(tokens), ZLoss{}, 1.0, accumulate, partial, blocks, loss, stream);
}

void LaunchRouterEntropy(const RouterTokens& tokens, bool accumulate, double* partial, int blocks,
                         double* entropy, cudaStream_t stream) {
  LaunchLoss(tokens, Entropy{}, 1.0, accumulate, partial, blocks, entropy, stream);
}

void LaunchBalanceLossGrad(const RouterTokens& tokens, const float* count, double factor,
                           const double* control, float* d_logits, cudaStream_t stream) {
  LaunchGrad(tokens, Balance{count}, factor, control, d_logits, stream);
}

void LaunchRouterZLossGrad(const RouterTokens& tokens, double factor, const double* control, float* d_logits,
                           cudaStream_t stream) {
  LaunchGrad(OfSoftmax(tokens), ZLoss{}, factor, control, d_logits, stream);
}

}  // namespace engine::backend::cuda
