// Sizes of attention's own kernels (attention/sm90a.h) that plans depend on.
#pragma once

#include <cstdint>
#include <iterator>

namespace engine::backend::cuda {

inline constexpr std::int64_t kOwnMostElements = 256;  // of a head
inline constexpr std::int64_t kAttentionReferenceMaxHead =
    512;  // likewise, in the reference kernels, which take what others do not

// The farthest distance that may have a bias of its own: scratch has a sum for each distance, for each warp of keys.
inline constexpr std::int64_t kOwnMostDistance = 1024;
inline constexpr std::int64_t kOwnMostPlaces = 32768;  // whose pairs have a bias each

// The kernels are made for heads of so many elements of q and k, and of v, and fill up what has fewer with zeros.
struct OwnSizes {
  int head, value_head;
  // Of the backward pass: elements of the sums of dq, queries of a tile, keys of a block, and counters of a tile.
  int sums, tile_queries, block_keys, turns;
};
inline constexpr OwnSizes kOwnSizes[] = {
    {64, 64, 64, 128, 128, 1},    //
    {96, 96, 96, 64, 128, 1},     //
    {128, 128, 128, 64, 128, 1},  //
    {192, 128, 256, 64, 64, 2},   //
    {256, 256, 256, 64, 64, 2},
};

// Scratch of a counter, of the forward pass all there is.
inline constexpr std::int64_t kOwnCounterBytes = 256;

// Of the backward pass: warps that have keys of a block.
inline constexpr int kOwnKeyWarps = 8;

// Planes of Sm90aAttention::lse2.
constexpr std::int64_t LsePlanes(std::int64_t distance, bool causal) {
  if (distance == 0) return 1;
  return causal ? 2 : 3;
}

// The smallest that holds a head of neither more than kOwnMostElements.
constexpr const OwnSizes& OwnSizesOf(std::int64_t head, std::int64_t value_head) {
  for (const OwnSizes& sizes : kOwnSizes)
    if (head <= sizes.head && value_head <= sizes.value_head) return sizes;
  return kOwnSizes[std::size(kOwnSizes) - 1];
}

}  // namespace engine::backend::cuda
