// How attention over caches is cut into blocks of keys, and what these leave to be added up.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/graph/op.h"

namespace engine::backend::cuda {

// The keys of one query and head are cut into blocks of `chunk`, `chunks` of them where the cache is full. Several blocks leave
// fp32 sums [B·H, chunks, U + 2] in scratch: of values, the largest score, and Σ exp(score − largest).
struct CachedAttentionCut {
  std::int64_t chunk = 0, chunks = 1;
  std::int64_t scratch_bytes = 0;
};

// q [B, 1, H, E], caches k [N, T, K, E] and v [N, T, K, U]. With fewer samples there are more blocks of each, so that sums have
// another order than with more.
inline CachedAttentionCut CutCachedAttention(const Shape& q, const Shape& k, const Shape& v) {
  constexpr std::int64_t kTile = 64;  // keys that the four warps of a block take at a time
  constexpr std::int64_t kBlocks = std::int64_t{2} * 132;  // that keep an H200's multiprocessors busy
  const auto up = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  const std::int64_t rows = k[1];
  const std::int64_t heads = q[0] * q[1] * k[2] * up(q[2] / k[2], 16);  // blocks of one chunk of keys
  const std::int64_t wanted = std::max<std::int64_t>(1, kBlocks / std::max<std::int64_t>(1, heads));
  CachedAttentionCut cut;
  cut.chunk = up(up(rows, wanted), kTile) * kTile;
  cut.chunks = up(rows, cut.chunk);
  if (cut.chunks > 1) cut.scratch_bytes = q[0] * q[1] * q[2] * cut.chunks * (v[3] + 2) * 4;
  return cut;
}

}  // namespace engine::backend::cuda
