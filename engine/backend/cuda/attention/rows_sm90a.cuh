// What attention's gradient does with rows, before and after its products.
#pragma once

#include <bit>

#include "engine/backend/cuda/attention/distance_sm90a.cuh"
#include "engine/backend/cuda/attention/sm90a.cuh"
#include "engine/backend/cuda/kernels/early.cuh"

namespace engine::backend::cuda::attention_sm90a {

// The two warpgroups of the backward pass share what a tile gives to dq: each has 64 of 128 queries, or half of the elements of 64.
// How many columns of dq one warpgroup has.
constexpr int QueryColumns(int elements, int tile) { return tile == 128 ? elements : elements / 2; }
// How many of these columns it adds to the sums at a time, of 64 queries.
constexpr int SumsColumns(int elements, int tile) {
  const int columns = QueryColumns(elements, tile);
  return columns < 64 ? columns : 64;
}

// 64 rows of a warpgroup. Lanes of four trade what they have of four times eight columns, so that each writes 16 bytes.
template <typename T, int kSums>
__device__ __forceinline__ void StoreRows(const float (&d)[kSums], float scale, T* out, std::int64_t token,
                                          int rows, int elements) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
  const int at = lane % 4;
  constexpr int kEights = kSums / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp * 16 + lane / 4 + half * 8;
#pragma unroll
    for (int four = 0; four < (kEights + 3) / 4; ++four) {
      std::uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int from = (four * 4 + i) * 4 + half * 2;
        pairs[i] = from < kSums ? PairFromFloat(T(), d[from] * scale, d[from + 1] * scale) : 0;
      }
      // pairs[i] of lane l becomes pairs[l] of lane i.
      std::uint32_t low = at & 1 ? pairs[0] : pairs[1];
      std::uint32_t high = at & 1 ? pairs[2] : pairs[3];
      low = __shfl_xor_sync(kAllLanes, low, 1);
      high = __shfl_xor_sync(kAllLanes, high, 1);
      if (at & 1) {
        pairs[0] = low, pairs[2] = high;
      } else {
        pairs[1] = low, pairs[3] = high;
      }
      low = at & 2 ? pairs[0] : pairs[2];
      high = at & 2 ? pairs[1] : pairs[3];
      low = __shfl_xor_sync(kAllLanes, low, 2);
      high = __shfl_xor_sync(kAllLanes, high, 2);
      if (at & 2) {
        pairs[0] = low, pairs[1] = high;
      } else {
        pairs[2] = low, pairs[3] = high;
      }
      const bool has_eight = four * 4 + 4 <= kEights || four * 4 + at < kEights;
      if (has_eight && row < rows && four * 32 + at * 8 < elements)
        *reinterpret_cast<uint4*>(out + row * token + four * 32 + at * 8) = {pairs[0], pairs[1], pairs[2],
                                                                             pairs[3]};
    }
  }
}

// What is written of Sm90aAttention where there are spans.
struct SpanTables {
  int2* key_spans;
  int2* walks;
  int* first_blocks;
  int blocks;  // of keys
  int samples;
  int threads;        // that each sample takes
  int thread_blocks;  // of all samples; 0: there are no spans
};

// The first of `count`, which ascend, that is above `value`; `count`: none is.
template <typename Of>
__device__ __forceinline__ int FirstAbove(int count, int value, const Of& of) {
  int low = 0;
  int high = count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (of(middle) > value) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// What spans of queries mean for keys, blocks of them, and tiles: a thread each.
template <int kTile, int kKeys>
__device__ __forceinline__ void MakeSpanTables(const Common& c, const SpanTables& p, int thread) {
  const int sample = thread / p.threads;
  const int index = thread - sample * p.threads;
  if (sample >= p.samples) return;
  const int2* spans = c.spans + static_cast<std::int64_t>(sample) * c.queries;
  const auto position = [&](int row) {
    const Run& run = c.run[c.runs > 1 && row >= c.run[1].row ? 1 : 0];
    return run.position + row - run.row;
  };
  if (index < c.keys) {
    const int first = FirstAbove(c.queries, index, [&](int row) { return spans[row].y; });
    const int behind = FirstAbove(c.queries, index, [&](int row) { return spans[row].x; });
    p.key_spans[static_cast<std::int64_t>(sample) * c.keys + index] = {
        first < c.queries ? position(first) : kFar, behind > 0 ? position(behind - 1) + 1 : -kFar};
  }
  if (index < p.blocks) {
    const int key = index * kKeys;
    const auto sight = [&](int tile) { return SightOfTile(c, sample, TileOf<kTile>(c, tile)); };
    p.walks[sample * p.blocks + index] = {
        FirstAbove(c.tiles, key, [&](int tile) { return sight(tile).below; }),
        FirstAbove(c.tiles, key + kKeys - 1, [&](int tile) { return sight(tile).from; }) - 1};
  }
  if (index < c.tiles) {
    const int from = SightOfTile(c, sample, TileOf<kTile>(c, index)).from;
    p.first_blocks[sample * c.tiles + index] = max(0, from) / kKeys;
  }
}

struct RowSumsParams {
  Common common;
  AttentionView o, d_o;
  LseView lse;
  float *lse2, *row_sums;
  std::int64_t lse_plane;
  int *turns, *taken;
  int thread_blocks;  // that each tile takes
  SpanTables tables;
};

// Threads that a row of so many values has, which add up by halves: of these each has eight, or none.
constexpr int LanesOfRow(int values) {
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(values) / 8));
}

// Each thread has a part of so many rows of a head, one behind the other: as many reads are under way at once, and what it writes of them
// stands in a row.
inline constexpr int kRowsOfThread = 4;

// lse2 and row sums, and no turn or item taken: threads beside each other have heads beside each other. The first blocks make tables of spans.
template <typename T, int kU, int kTile, int kKeys, int kTurns>
__global__ void RowSumsKernel(const __grid_constant__ RowSumsParams p) {
  LetNextBegin();
  constexpr int kLanes = LanesOfRow(kU);
  const Common& c = p.common;
  const int block = static_cast<int>(blockIdx.x) - p.tables.thread_blocks;
  if (block < 0) {
    MakeSpanTables<kTile, kKeys>(c, p.tables, static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x));
    return;
  }
  if (block == 0 && threadIdx.x == 0) *p.taken = 0;
  const int of_sample = block / p.thread_blocks;
  const int sample = of_sample / c.tiles;
  const int tile = of_sample - sample * c.tiles;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int groups = static_cast<int>(blockDim.x) / kLanes;  // of lanes, each with rows of a head
  const int index = (block - of_sample * p.thread_blocks) * groups + static_cast<int>(threadIdx.x) / kLanes;
  const QueryTile t = TileOf<kTile>(c, tile);
  const int first = index / c.heads * kRowsOfThread;
  const int head = index % c.heads;
  const int kv = head / c.group;
  struct Row {
    float lse;
    Pack8<T> o, d_o;
  };
  Row of[kRowsOfThread];
#pragma unroll
  for (int i = 0; i < kRowsOfThread; ++i) {
    Row& r = of[i];
    r.lse = -INFINITY;
    r.o = r.d_o = {};
    if (first + i >= t.rows) continue;
    const std::int64_t at = t.row + first + i;
    if (lane == 0) r.lse = p.lse.data[sample * p.lse.sample + at * p.lse.token + head * p.lse.head];
    if (lane * 8 >= c.value_head) continue;
    const auto load = [&](const AttentionView& view) {
      return *reinterpret_cast<const Pack8<T>*>(static_cast<const T*>(view.data) + sample * view.sample +
                                                at * view.token + kv * view.kv_head +
                                                (head - kv * c.group) * view.head + lane * 8);
    };
    r.o = load(p.o);
    r.d_o = load(p.d_o);
  }
  float sums[kRowsOfThread];
#pragma unroll
  for (int i = 0; i < kRowsOfThread; ++i) {
    float o[8];
    float d_o[8];
    Unpack8(of[i].o, o);
    Unpack8(of[i].d_o, d_o);
    sums[i] = 0;
#pragma unroll
    for (int e = 0; e < 8; ++e) sums[i] = fmaf(o[e], d_o[e], sums[i]);
#pragma unroll
    for (int other = kLanes / 2; other > 0; other /= 2) sums[i] += __shfl_xor_sync(kAllLanes, sums[i], other);
  }
  static_assert(kRowsOfThread == 4 && kTile % kRowsOfThread == 0);
  if (lane != 0 || first >= kTile) return;
  // A row that sees nothing has probabilities of exp(−∞).
  const auto lse2 = [&](int i) { return of[i].lse == -INFINITY ? INFINITY : of[i].lse * kLog2E; };
  const std::int64_t of_tile = (static_cast<std::int64_t>(sample) * c.heads + head) * c.tiles + tile;
  *reinterpret_cast<float4*>(p.row_sums + of_tile * kTile + first) = {sums[0], sums[1], sums[2], sums[3]};
  float* to = p.lse2 + of_tile * kTile + first;
  *reinterpret_cast<float4*>(to) = {lse2(0), lse2(1), lse2(2), lse2(3)};
  if (c.distance > 0) {
    const BiasesByDistance<T> biases(c, head);
    for (int end = -c.distance; end <= (c.causal ? -1 : c.distance); end += 2 * c.distance) {
      const float bias = biases.Log2At(end);
      to += p.lse_plane;
      *reinterpret_cast<float4*>(to) = {lse2(0) - bias, lse2(1) - bias, lse2(2) - bias, lse2(3) - bias};
    }
  }
  if (first > 0) return;
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) p.turns[of_tile * kTurns + turn] = 0;
}

struct RoundSumsParams {
  Common common;
  const float* sums;
  const int* turns;
  float scale;
  AttentionView dq;
};

// dq of its sums, a block a tile of a head, the last head first: what was added last is still in the L2 cache. Of a tile a warpgroup has what one of the backward pass has added at a time.
constexpr int RoundThreads(int elements, int tile) {
  return tile / 64 * (elements / SumsColumns(elements, tile)) * kWarpgroup;
}
template <typename T, int kE, int kTile, int kTurns>
__global__ void __launch_bounds__(RoundThreads(kE, kTile))
    RoundSumsKernel(const __grid_constant__ RoundSumsParams p) {
  AwaitEarlier();
  LetNextBegin();
  const Common& c = p.common;
  const int block = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  const int tile = block % c.tiles;
  const int row_of_heads = block / c.tiles;
  const int sample = row_of_heads / c.heads;
  const int head = row_of_heads - sample * c.heads;
  const int kv = head / c.group;
  const QueryTile t = TileOf<kTile>(c, tile);
  const int worker = static_cast<int>(threadIdx.x) / kWarpgroup;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  constexpr int kColumns = SumsColumns(kE, kTile);
  constexpr int kFours = kColumns / 8;  // of a thread
  const float4* from =
      reinterpret_cast<const float4*>(p.sums + static_cast<std::int64_t>(block) * kTile * kE) +
      worker * kFours * kWarpgroup + thread;
  float d[4 * kFours];
  const bool any =
      p.turns[block * kTurns] > 0;  // blocks have added to it: none do where its queries see no key
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    const float4 four = any ? __ldcs(from + i * kWarpgroup) : float4{0, 0, 0, 0};
    d[4 * i] = four.x, d[4 * i + 1] = four.y, d[4 * i + 2] = four.z, d[4 * i + 3] = four.w;
  }
  const int row = kTile == 128 ? worker * 64 : 0;
  const int element = kTile == 128 ? 0 : worker * kColumns;
  T* out = static_cast<T*>(p.dq.data) + sample * p.dq.sample + kv * p.dq.kv_head +
           (head - kv * c.group) * p.dq.head + (t.row + row) * p.dq.token + element;
  StoreRows(d, p.scale, out, p.dq.token, t.rows - row, c.head - element);
}

struct SinkSumsParams {
  const void* sinks;
  float* d_sinks;
  const float *lse2, *row_sums;
  std::int64_t rows;  // of a head of a sample, with those behind the last one
  int batch, heads;
};

// A block a head: over its queries in a fixed order.
template <typename T>
__global__ void __launch_bounds__(kWarpgroup) SinkSumsKernel(const __grid_constant__ SinkSumsParams p) {
  AwaitEarlier();
  LetNextBegin();
  __shared__ float of_warps[kWarpsOfGroup];
  const int head = static_cast<int>(blockIdx.x);
  const float sink = ToFloat(static_cast<const T*>(p.sinks)[head]) * kLog2E;
  float sum = 0;
  for (int sample = 0; sample < p.batch; ++sample) {
    const std::int64_t first = (static_cast<std::int64_t>(sample) * p.heads + head) * p.rows;
    for (std::int64_t row = threadIdx.x; row < p.rows; row += kWarpgroup)
      sum = fmaf(exp2f(sink - p.lse2[first + row]), p.row_sums[first + row], sum);
  }
  sum = WarpSum(sum);
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = sum;
  __syncthreads();
  if (threadIdx.x == 0) p.d_sinks[head] -= of_warps[0] + of_warps[1] + of_warps[2] + of_warps[3];
}

}  // namespace engine::backend::cuda::attention_sm90a
