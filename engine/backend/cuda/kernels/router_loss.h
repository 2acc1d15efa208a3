// Losses of a router and their gradients (engine/ops/router_loss.cpp). T tokens, `of_group` of them a group of samples, E experts.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/backend/cuda/kernels/router_score.h"

namespace engine::backend::cuda {

// Tokens of a router. logits f32 [T, E], E at most kMostExperts (route.h).
struct RouterTokens {
  const float* logits = nullptr;
  std::int64_t tokens = 0;
  std::int64_t of_group = 1;  // read by the balance loss alone
  int experts = 0;
  RouterScore score = RouterScore::kSoftmax;  // not read by the z loss
};

// *loss (+)= Σ over tokens of factor · Σ_e count[group, e] · p_e, in f64, in an order fixed by T, E and `blocks`.
// count f32 [groups, E]; partial: `blocks` numbers of scratch.
void LaunchBalanceLoss(const RouterTokens& tokens, const float* count, double factor, bool accumulate,
                       double* partial, int blocks, double* loss, cudaStream_t stream);
// *loss (+)= Σ over tokens of (log Σ_e exp(logit))², likewise.
void LaunchRouterZLoss(const RouterTokens& tokens, bool accumulate, double* partial, int blocks, double* loss,
                       cudaStream_t stream);
// *entropy (+)= Σ over tokens of −Σ_e p_e · log p_e, likewise.
void LaunchRouterEntropy(const RouterTokens& tokens, bool accumulate, double* partial, int blocks,
                         double* entropy, cudaStream_t stream);

// d_logits f32 [T, E] = factor · control[kLossScale] · the gradient of a token's term. control (plan/control.h) may be null:
// loss scale 1.
void LaunchBalanceLossGrad(const RouterTokens& tokens, const float* count, double factor,
                           const double* control, float* d_logits, cudaStream_t stream);
void LaunchRouterZLossGrad(const RouterTokens& tokens, double factor, const double* control, float* d_logits,
                           cudaStream_t stream);

}  // namespace engine::backend::cuda
