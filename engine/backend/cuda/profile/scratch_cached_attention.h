// How attention over caches is cut into blocks of keys, and what these leave to be added up.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "engine/backend/cuda/profile/attention_tiles.h"
#include "engine/backend/cuda/profile/cached_attention_tiles.h"
#include "engine/backend/cuda/profile/scratch.h"
#include "engine/graph/op.h"

namespace engine::backend::cuda {

// The keys of one query and head are cut into blocks of `chunk`, `chunks` of them where the cache is full. Several blocks leave
// fp32 sums [B·H, chunks, U + 2] in scratch: of values, the largest score, and Σ exp(score − largest).
struct CachedAttentionCut {
  std::int64_t chunk = 0, chunks = 1;
  std::int64_t scratch_bytes = 0;
};

// q [B, 1, H, E], caches k [N, T, K, E] and v [N, T, K, U], in e4m3 or in 16 bits. With fewer samples there are more blocks of each, so that sums have
// another order than with more.
inline CachedAttentionCut CutCachedAttention(const Shape& q, const Shape& k, const Shape& v,
                                             bool narrow_cache) {
  constexpr std::int64_t kTile = 64;              // keys that the four warps of a block take at a time
  constexpr std::int64_t kMultiprocessors = 132;  // of an H200
  const std::int64_t blocks =
      kMultiprocessors * (HasOwnKeys(q[2], k[2], q[3], v[3])            ? kOwnKeysBlocks
                          : narrow_cache && HasNarrowBlocks(q[3], v[3]) ? kNarrowBlocks
                                                                        : kSharedKeysBlocks);
  const auto up = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  const std::int64_t rows = k[1];
  const std::int64_t heads = q[0] * q[1] * k[2] * up(q[2] / k[2], 16);  // blocks of one chunk of keys
  const std::int64_t wanted = std::max<std::int64_t>(1, blocks / std::max<std::int64_t>(1, heads));
  CachedAttentionCut cut;
  cut.chunk = up(up(rows, wanted), kTile) * kTile;
  cut.chunks = up(rows, cut.chunk);
  if (cut.chunks > 1) cut.scratch_bytes = q[0] * q[1] * q[2] * cut.chunks * (v[3] + 2) * 4;
  return cut;
}

// With the attribute invariant, our own kernels' forward pass carries it out (attention/sm90a.h): each sample's heads of one kv
// head are the queries of a tile, or, with sinks, each head is. Offsets in bytes; at 0 stand the tiles that are taken.
struct InvariantCachedAttention {
  std::int64_t queries = 0, heads = 0;  // of the tiles: as many queries of one position, of so many heads
  std::int64_t spans = 0;               // int32 [B, queries, 2]
  std::int64_t lse = 0;                 // fp32 [B, H], which nobody reads
  std::int64_t bytes = 0;
};
inline InvariantCachedAttention LayOutInvariant(const Shape& q, const Shape& k, bool has_sinks) {
  InvariantCachedAttention layout;
  layout.queries = has_sinks ? 1 : q[2] / k[2];
  layout.heads = q[2] / layout.queries;
  layout.spans = kOwnCounterBytes;
  layout.lse = layout.spans + (q[0] * layout.queries * 8 + 255) / 256 * 256;
  layout.bytes = layout.lse + q[0] * q[2] * 4;
  return layout;
}

// Whether cached_attention of these inputs has sinks.
inline bool HasSinks(graph::TypeSpan inputs) { return inputs.size() > 7 && inputs[7].shape.rank() == 1; }

// Why our own kernels do not carry it out (WhyNotOwn), or not with the bits of attention; empty: they do.
std::string_view WhyNotInvariant(std::string_view kernel, graph::TypeSpan inputs,
                                 const graph::Attributes& attributes, const CudaChip& chip);

}  // namespace engine::backend::cuda
