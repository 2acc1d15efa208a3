// Logits over the classes that a rank holds.
#pragma once

#include "engine/backend/cpu/kernels/loops.h"

namespace engine::backend::cpu {

// The local columns of logits that are classes, and the class of the first.
inline Piece Classes(const TensorView& logits, const graph::Attributes& attributes) {
  const Piece held = OnePiece(logits, logits.shape.rank() - 1);
  return {held.start, std::clamp<std::int64_t>(attributes.Int("classes") - held.start, 0, held.length)};
}

// Σ exp(z − top), by chunks: exp in one loop and the sum in another, so that both vectorise.
template <typename T>
T SumExp(std::int64_t count, const T* z, T top) {
  constexpr std::int64_t kChunk = 512;
  T chunk[kChunk];
  T sum = 0;
  for (std::int64_t from = 0; from < count; from += kChunk) {
    const std::int64_t n = std::min(kChunk, count - from);
    for (std::int64_t i = 0; i < n; ++i) chunk[i] = Exp(z[from + i] - top);
    sum += SumOf<T>(n, [&](std::int64_t i) { return chunk[i]; });
  }
  return sum;
}

}  // namespace engine::backend::cpu
