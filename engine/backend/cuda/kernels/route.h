// Routers (engine/ops/route.cpp): which experts a token goes to, and with what weight. T tokens, E experts.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/backend/cuda/kernels/logical_dims.h"
#include "engine/backend/cuda/kernels/router_score.h"
#include "engine/base/philox.h"

namespace engine::backend::cuda {

// Beyond, a warp's scores, ranks and groups do not fit in the 48 KiB of shared memory that every kernel may have.
inline constexpr std::int64_t kMostExperts = 4096;

// Of measurements: choices that do not depend on the logits.
enum class ForcedRoute : std::uint8_t { kNone, kEven, kZipf };

struct Routing {
  int experts = 0;  // at most kMostExperts
  int k = 0;        // at most `experts`
  int groups = 1;   // a divisor of `experts`
  int kept = 1;     // groups
  int best = 1;     // ranks of a group that are its own
  RouterScore score = RouterScore::kSoftmax;
  bool normalize = false;
  float scale = 1;
  ForcedRoute forced = ForcedRoute::kNone;
  PhiloxKey key;       // of kZipf
  LogicalDims tokens;  // where the tokens lie in all tokens; read only where choices are forced
};

// logits f32 [T, E] → choice [T, k], in falling order of their score plus bias[E] (null: none), of equals the smaller expert
// first; weight f32 [T, k]. `ranks` f32 [T, E], where not null: what experts are chosen by instead. No two choices of a token are the same, and all are experts, even where logits are NaN.
void LaunchRoute(const Routing& routing, std::int64_t tokens, const float* logits, const float* bias,
                 const float* ranks, std::int32_t* choice, float* weight, cudaStream_t stream);

// d_logits f32 [T, E].
void LaunchRouteGrad(const Routing& routing, std::int64_t tokens, const float* logits,
                     const std::int32_t* choice, const float* d_weight, float* d_logits, cudaStream_t stream);

}  // namespace engine::backend::cuda
