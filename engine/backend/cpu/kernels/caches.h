// Helpers that attention over caches of either kind (ops/cached_attention.cpp, cached_latent_attention.cpp) shares.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/backend/cpu/kernels/loops.h"
#include "engine/backend/kernel.h"

namespace engine::backend::cpu {

template <typename T>
T Dot(std::int64_t n, const T* a, const T* b) {
  return SumOf<T>(n, [&](std::int64_t e) { return a[e] * b[e]; });
}

// Whether token s of a sample at these positions is written into a cache of `rows` rows: it is no padding, and none behind it
// takes its row.
inline bool IsCached(const std::int32_t* positions, std::int64_t tokens, std::int64_t s, std::int64_t rows) {
  const bool is_padding = s > 0 && positions[s] == positions[s - 1];
  return !is_padding && positions[tokens - 1] - positions[s] < rows;
}

// Puts the tokens of x [B, S, …] into a cache [N, T, …], which `before` is, too, where it moves in place.
template <typename T>
void Keep(const TensorView& x, const TensorView& before, const std::int32_t* all_positions,
          const std::int32_t* slots, const TensorView& cache) {
  const std::int64_t tokens = x.shape[1];
  const std::int64_t width = x.shape.elements(2, x.shape.rank());
  if (cache.data != before.data) std::copy_n(before.as<T>(), cache.shape.elements(), cache.as<T>());
  for (std::int64_t b = 0; b < x.shape[0]; ++b) {
    const std::int32_t* positions = all_positions + b * tokens;
    if (slots[b] < 0) continue;
    T* const slot = cache.as<T>() + slots[b] * cache.shape[1] * width;
    for (std::int64_t s = 0; s < tokens; ++s) {
      if (!IsCached(positions, tokens, s, cache.shape[1])) continue;
      std::copy_n(x.as<T>() + (b * tokens + s) * width, width,
                  slot + (positions[s] % cache.shape[1]) * width);
    }
  }
}

}  // namespace engine::backend::cpu
