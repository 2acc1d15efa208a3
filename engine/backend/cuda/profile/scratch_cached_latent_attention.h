// How attention over caches of latents is cut into blocks of heads and keys, and what these leave to be added up.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/backend/cuda/profile/latent_tiles.h"
#include "engine/graph/op.h"

namespace engine::backend::cuda {

// The keys of one sample are cut into blocks of `chunk`, `chunks` of them where the cache is full. Several blocks leave fp32
// sums [B·H, chunks, C + 2] in scratch: of latents, the largest score, and Σ exp(score − largest).
struct CachedLatentAttentionCut {
  bool tiles = false;  // else a block takes a query and head, and there is one chunk
  std::int64_t chunk = 0, chunks = 1;
  std::int64_t scratch_bytes = 0;
};

// q [B, 1, H, C] of this dtype, the queries' other part [B, 1, H, M] from `first` on, and caches [N, T, C] and [N, T, 1, R].
inline CachedLatentAttentionCut CutCachedLatentAttention(const Shape& q, const Shape& rest,
                                                         std::int64_t first, const Shape& latents,
                                                         const Shape& shareds, DType dtype) {
  constexpr std::int64_t kTile = 64;
  constexpr std::int64_t kBlocks = 132;  // one on each of an H200's multiprocessors
  const auto up = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  const std::int64_t rows = latents[1];
  CachedLatentAttentionCut cut = {.chunk = rows};
  cut.tiles = (dtype == DType::kBF16 || dtype == DType::kF16) && q[3] == kLatentTile &&
              shareds[3] == kSharedTile && rest[3] % 8 == 0 && first % 8 == 0;
  if (!cut.tiles) return cut;
  const std::int64_t blocks = q[0] * up(q[2], LatentTileHeads(q[2]));  // of one chunk of keys
  const std::int64_t wanted = std::max<std::int64_t>(1, kBlocks / std::max<std::int64_t>(1, blocks));
  cut.chunk = up(up(rows, wanted), kTile) * kTile;
  cut.chunks = up(rows, cut.chunk);
  if (cut.chunks > 1) cut.scratch_bytes = q[0] * q[2] * cut.chunks * (q[3] + 2) * 4;
  return cut;
}

}  // namespace engine::backend::cuda
