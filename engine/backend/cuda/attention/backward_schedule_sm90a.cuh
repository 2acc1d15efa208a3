// The schedule of attention's backward pass on Hopper: items, which are blocks of keys of a head, the tiles of queries that a block
// meets, and the order in which blocks add to a tile.
#pragma once

#include "engine/backend/cuda/attention/sm90a.cuh"

namespace engine::backend::cuda::attention_sm90a {

struct BackwardParams {
  Common common;
  int blocks;  // of keys
  // There is no mask, and a head has few blocks: each begins with a tile of its own and goes round. Else blocks walk down from the
  // last tile that sees them, and add to a tile in ascending order.
  bool goes_round;
  int items, section;
  int* taken;         // items that are taken; null: each thread block has one, as where blocks go round
  const int2* walks;  // this and those behind it: Sm90aAttention
  const int* first_blocks;
  const float* lse2;
  std::int64_t lse_plane;  // Sm90aAttention::lse2
  const float* delta;
  float* dq;
  int* turns;
  float scale;
  float* distance_sums;
  float* d_biases;    // of pairs
  bool sets_biases;   // writes d_biases, of all pairs; else adds to it
  bool boxes_biases;  // biases of pairs come to shared memory by boxes; else threads read them
  AttentionView dk, dv;
};

// An item is the work that a thread block carries out at a time.
struct BackwardItem {
  int sample, kv, block;  // of keys
};

// The item of an index. Within a head the long items come first, and unless blocks go round, an item waits only for items of smaller
// indices.
__device__ __forceinline__ BackwardItem ItemAt(const BackwardParams& p, int index) {
  const int of_section = p.section * p.blocks;
  const int section = index / of_section;
  const int rest = index - section * of_section;
  const int heads = min(p.section, p.items / p.blocks - section * p.section);
  const int block = rest / heads;
  const int head = section * p.section + rest - block * heads;
  const int sample = head / p.common.kv_heads;
  return {sample, head - sample * p.common.kv_heads, block};
}

// The next item for this thread block to carry out: p.items or more, there is none. Thread blocks take items in their order: what an
// item waits for has been taken before it, by a thread block that runs. Where blocks go round, each thread block has one item.
__device__ __forceinline__ int TakeItem(const BackwardParams& p, bool first) {
  if (p.taken != nullptr) return atomicAdd(p.taken, 1);
  return first ? static_cast<int>(blockIdx.x) : p.items;
}

// The tiles that see a block, in the order in which it meets them.
struct Walk {
  int first, last, start;  // tiles; where the block goes round, it begins with `start`
  bool goes_round;

  __device__ __forceinline__ int steps() const { return max(0, last - first + 1); }
  __device__ __forceinline__ int Tile(int step) const {
    if (!goes_round) return last - step;
    const int tile = start + step;
    return tile > last ? tile - steps() : tile;
  }
};
// The tile that a block begins with where it goes round.
template <typename Form>
__device__ __forceinline__ int StartOf(const Common& c, int block) {
  return block * (Form::kKeys / Form::kQueries) % c.tiles;
}

template <typename Form>
__device__ __forceinline__ Walk WalkOf(const BackwardParams& p, const BackwardItem& item) {
  const Common& c = p.common;
  Walk walk = {0, c.tiles - 1, p.goes_round ? StartOf<Form>(c, item.block) : 0, p.goes_round};
  if (p.walks != nullptr) {
    const int2 tiles = __ldg(p.walks + item.sample * p.blocks + item.block);
    walk.first = tiles.x;
    walk.last = tiles.y;
    return walk;
  }
  if (!c.causal) return walk;
  const int key = item.block * Form::kKeys;
  walk.first = c.tiles;
  for (int r = c.runs - 1; r >= 0; --r) {
    const Run& run = c.run[r];
    if (run.position + run.count > key)
      walk.first = run.first_tile + max(0, key - run.position) / Form::kQueries;
  }
  if (c.window > 0) {
    const int end = key + Form::kKeys - 1 + c.window - 1;
    walk.last = -1;
    for (int r = 0; r < c.runs; ++r) {
      const Run& run = c.run[r];
      const int tiles = (run.count + Form::kQueries - 1) / Form::kQueries;
      if (run.position <= end)
        walk.last = run.first_tile + min(tiles - 1, (end - run.position) / Form::kQueries);
    }
  }
  return walk;
}

// How many blocks add to a tile before this one. All lanes of a warp call it.
template <typename Form>
__device__ __forceinline__ int RankOf(const BackwardParams& p, const BackwardItem& item, int tile) {
  const Common& c = p.common;
  if (!p.goes_round) {
    int first = 0;
    if (p.first_blocks != nullptr) {
      first = __ldg(p.first_blocks + item.sample * c.tiles + tile);
    } else if (c.causal && c.window > 0) {
      first = max(0, TileOf<Form::kQueries>(c, tile).position - c.window + 1) / Form::kKeys;
    }
    return item.block - first;
  }
  // Blocks reach the tile one after the other if none waits; of those that do so at once, the first one is first.
  const auto step = [&](int block) {
    const int ahead = tile - StartOf<Form>(c, block);
    return ahead >= 0 ? ahead : ahead + c.tiles;
  };
  const int own = step(item.block);
  int rank = 0;
  for (int first = 0; first < p.blocks; first += kWarp) {
    const int block = first + static_cast<int>(threadIdx.x) % kWarp;
    const bool before = block < p.blocks && (step(block) < own || (step(block) == own && block < item.block));
    rank += __popc(__ballot_sync(kAllLanes, before));
  }
  return rank;
}

template <typename Form>
__device__ __forceinline__ std::int64_t RowTile(const BackwardParams& p, const BackwardItem& item, int g,
                                                int tile) {
  const Common& c = p.common;
  return (static_cast<std::int64_t>(item.sample) * c.heads + item.kv * c.group + g) * c.tiles + tile;
}

// Blocks add to a tile by copies, in turns. Counters are no copies: the fences put the two in order (PTX ISA, proxies).
__device__ __forceinline__ void FenceCopies() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
__device__ __forceinline__ void WaitForTurn(const int* turn, int rank) {
  int value;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(turn) : "memory");
  } while (value != rank);
  FenceCopies();
}
__device__ __forceinline__ void EndTurn(int* turn) {
  FenceCopies();
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(turn) : "memory");
}

}  // namespace engine::backend::cuda::attention_sm90a
