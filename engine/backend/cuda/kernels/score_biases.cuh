// What trained biases add to the scores of one query of a head: by the distance of a key, or for each key by itself.
#pragma once

#include "engine/backend/cuda/kernels/vector.cuh"

namespace engine::backend::cuda {

template <typename T>
struct ScoreBiases {
  const T* of_zero = nullptr;  // of the key at the query's own position; null: none
  std::int64_t farthest = 0;   // keys further away have the bias of that distance

  __device__ __forceinline__ bool any() const { return of_zero != nullptr; }
  // The bias of a key that stands so far behind the query; negative: before it.
  __device__ __forceinline__ float At(std::int64_t distance) const {
    return ToFloat(of_zero[min(max(distance, -farthest), farthest)]);
  }
};

// `Problem` has biases [heads, 2·distance + 1], or [heads, pairs, pairs] where pairs > 0, or null.
template <typename T, typename Problem>
__device__ __forceinline__ ScoreBiases<T> ScoreBiasesOf(const Problem& p, std::int64_t head,
                                                        std::int64_t position) {
  const auto* biases = static_cast<const T*>(p.biases);
  if (biases == nullptr) return {};
  if (p.pairs > 0) return {biases + (head * p.pairs + position) * p.pairs + position, p.pairs};
  return {biases + head * (2 * p.distance + 1) + p.distance, p.distance};
}

}  // namespace engine::backend::cuda
