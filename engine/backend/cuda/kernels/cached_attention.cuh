// Shared by the kernels of attention over caches of keys and values (cached_attention.cu, …_own_keys.cu, …_any.cu): how a
// score is made of a product, and how the new token goes to its row.
#pragma once

#include "engine/backend/cuda/kernels/cache.cuh"
#include "engine/backend/cuda/kernels/cached_attention.h"
#include "engine/backend/cuda/kernels/score_biases.cuh"
#include "engine/graph/alibi.h"

namespace engine::backend::cuda {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr float kLog2E = 1.4426950408889634F;
constexpr float kNone = -3.0e38F;  // the largest score of no key

// The score that softmax sees, in units of log 2, of a scaled product.
template <typename T>
__device__ __forceinline__ float Bent(const CachedAttention& p, float score, float slope, std::int64_t head,
                                      std::int64_t position, std::int64_t distance) {
  if (p.softcap > 0) score = p.softcap * tanhf(score / p.softcap);
  if (p.biases != nullptr) score += ScoreBiasesOf<T>(p, head, position).At(distance);
  return (score + slope * static_cast<float>(distance)) * kLog2E;
}

__device__ __forceinline__ float SlopeOf(const CachedAttention& p, std::int64_t head) {
  return p.alibi ? exp2f(static_cast<float>(graph::AlibiExponent(p.first_head + head, p.all_heads))) : 0.0F;
}

// The new token's key and value of one head to their row of the caches.
template <typename T, typename Stored>
__device__ __forceinline__ void KeepToken(const CachedAttention& p, std::int64_t token, std::int64_t kv,
                                          std::int64_t slot, std::int64_t position) {
  const std::int64_t from = token * p.kv_heads + kv;
  const std::int64_t to = (slot * p.rows + position % p.rows) * p.kv_heads + kv;
  for (std::int64_t e = threadIdx.x; e < p.width; e += kThreads)
    static_cast<Stored*>(p.keys)[to * p.width + e] =
        ToKeep<Stored>(static_cast<const T*>(p.k)[from * p.width + e]);
  for (std::int64_t e = threadIdx.x; e < p.value_width; e += kThreads)
    static_cast<Stored*>(p.values)[to * p.value_width + e] =
        ToKeep<Stored>(static_cast<const T*>(p.v)[from * p.value_width + e]);
}

// The result whose elements a block makes: that of a query's head, by its keys of chunk blockIdx.x.
struct PartOfHead {
  std::int64_t row;   // token · heads + head
  std::int64_t head;  // of those here
  int chunks;
  bool idle;  // there are no keys
};
// One element of Σ exp2(score − top) · value, with the sum of these weights, to where chunks are added up, or, where there is one
// chunk, with the head's sink into o.
template <typename T>
__device__ __forceinline__ void PutElement(const CachedAttention& p, const PartOfHead& part, int element,
                                           float top, float sum, float value) {
  const auto width = static_cast<int>(p.value_width);
  if (part.chunks > 1) {
    float* const to = p.scratch + (part.row * part.chunks + blockIdx.x) * (width + 2);
    to[element] = value;
    if (element == 0) {
      to[width] = top;
      to[width + 1] = sum;
    }
    return;
  }
  if (p.sinks != nullptr && !part.idle) {
    const float sink = ToFloat(static_cast<const T*>(p.sinks)[part.head]) * kLog2E;
    const float higher = fmaxf(top, sink);
    const float shrink = exp2f(top - higher);
    sum = sum * shrink + exp2f(sink - higher);
    value *= shrink;
  }
  static_cast<T*>(p.o)[part.row * width + element] = FromFloat<T>(sum > 0 ? value / sum : 0.0F);
}

// Heads with keys of their own (HasOwnKeys). bf16 and f16.
void LaunchCachedAttentionOfOwnKeys(const CachedAttention& attention, cudaStream_t stream);
// Heads of any size, T and Stored as the attention says.
void LaunchCachedAttentionOfAnySize(const CachedAttention& attention, cudaStream_t stream);

}  // namespace engine::backend::cuda
