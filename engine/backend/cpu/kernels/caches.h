// Helpers that attention over caches of either kind (ops/cached_attention.cpp, cached_latent_attention.cpp) shares.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "engine/backend/cpu/kernels/loops.h"
#include "engine/backend/kernel.h"
#include "engine/base/e4m3.h"

namespace engine::backend::cpu {

// A number of a cache, and a number as a cache keeps it.
template <typename T>
T Kept(T number) {
  return number;
}
template <typename T>
T Kept(E4M3 number) {
  return static_cast<T>(FloatFromE4M3(number));
}
template <typename Stored, typename T>
Stored ToKeep(T number) {
  if constexpr (std::is_same_v<Stored, E4M3>)
    return E4M3FromFloat(static_cast<float>(number));
  else
    return number;
}

// Calls use(Stored()) with what a cache of numbers T keeps them as.
template <typename T, typename Use>
void OfStored(const TensorView& cache, const Use& use) {
  cache.dtype == DType::kE4M3 ? use(E4M3()) : use(T());
}

template <typename T, typename Stored>
T Dot(std::int64_t n, const T* a, const Stored* b) {
  return SumOf<T>(n, [&](std::int64_t e) { return a[e] * Kept<T>(b[e]); });
}

// Whether token s of a sample at these positions is written into a cache of `rows` rows: it is no padding, and none behind it
// takes its row.
inline bool IsCached(const std::int32_t* positions, std::int64_t tokens, std::int64_t s, std::int64_t rows) {
  const bool is_padding = s > 0 && positions[s] == positions[s - 1];
  return !is_padding && positions[tokens - 1] - positions[s] < rows;
}

// Puts the tokens of x [B, S, …] into a cache [N, T, …], which `before` is, too, where it moves in place.
template <typename T, typename Stored>
void Keep(const TensorView& x, const TensorView& before, const std::int32_t* all_positions,
          const std::int32_t* slots, const TensorView& cache) {
  const std::int64_t tokens = x.shape[1];
  const std::int64_t width = x.shape.elements(2, x.shape.rank());
  if (cache.data != before.data) std::copy_n(before.as<Stored>(), cache.shape.elements(), cache.as<Stored>());
  for (std::int64_t b = 0; b < x.shape[0]; ++b) {
    const std::int32_t* positions = all_positions + b * tokens;
    if (slots[b] < 0) continue;
    Stored* const slot = cache.as<Stored>() + slots[b] * cache.shape[1] * width;
    for (std::int64_t s = 0; s < tokens; ++s) {
      if (!IsCached(positions, tokens, s, cache.shape[1])) continue;
      const T* const token = x.as<T>() + (b * tokens + s) * width;
      std::transform(token, token + width, slot + (positions[s] % cache.shape[1]) * width, ToKeep<Stored, T>);
    }
  }
}

}  // namespace engine::backend::cpu
