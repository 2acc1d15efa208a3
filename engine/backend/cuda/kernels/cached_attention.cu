// Attention of single queries over caches: memory sets its time, so that keys and values are read once for all query heads
// that share them. A block has the heads of one group (16 at a time, the rows of the tensor cores' tiles) and a chunk of
// keys; its four warps take tiles of 16 keys in turns, each with a pipeline of its own, and add up at the end
// (FlashAttention-2's order, Dao, arXiv:2307.08691; chunks as in Flash-Decoding). Where there are several chunks, another
// kernel adds these up in their order.
#include "engine/backend/cuda/kernels/cached_attention.cuh"

#include <algorithm>

#include "engine/backend/cuda/kernels/cache.cuh"
#include "engine/backend/cuda/kernels/early.cuh"
#include "engine/backend/cuda/kernels/mma.cuh"
#include "engine/backend/cuda/kernels/tiles.cuh"
#include "engine/backend/cuda/kernels/vector.cuh"
#include "engine/graph/alibi.h"

namespace engine::backend::cuda {
namespace {

constexpr int kTileKeys = 16;
constexpr int kTileHeads = 16;

// Shared memory of a block. Rows have 16 bytes more than their elements, so that matrices are read without conflicts.
template <int kWidth, int kValueWidth>
struct Layout {
  static constexpr int kStages = kWidth + kValueWidth > 256 ? 2 : 3;
  static constexpr int kKeyRow = kWidth + 8;
  static constexpr int kValueRow = kValueWidth + 8;
  static constexpr int kStage = kTileKeys * (kKeyRow + kValueRow);  // elements of a warp's
  static constexpr int kQueries = kTileHeads * kKeyRow;
  static constexpr int kPipeline = 2 * (kQueries + kWarps * kStages * kStage);  // bytes
  static constexpr int kSums = 4 * kWarps * kTileHeads * (kValueWidth + 2);     // bytes, at the end
  static constexpr int kBytes = kPipeline > kSums ? kPipeline : kSums;
};

// A warp's running softmax of 16 heads: of rows lane / 4 and that + 8.
template <int kValueWidth>
struct RunningTile {
  float top[2] = {kNone, kNone};
  float sum[2] = {0, 0};
  float o[kValueWidth / 8][4] = {};
};

// `Stored`: what the caches keep numbers as.
template <typename T, typename Stored, int kWidth, int kValueWidth>
struct Warp {
  using L = Layout<kWidth, kValueWidth>;
  static constexpr bool kNarrow = !std::is_same_v<T, Stored>;

  const CachedAttention& p;
  T* queries;
  T* stages;             // of this warp
  const Stored* keys;    // of the slot and kv head
  const Stored* values;  // likewise
  const T* new_key;      // at `position`
  const T* new_value;    // likewise
  std::int64_t key_stride, value_stride;
  std::int64_t position;
  std::int64_t first, end;  // positions of the chunk's keys
  int lane;

  // Rows of a slot are no more than an int counts, and the keys that a query sees no more than there are rows.
  template <int kColumns, int kRow>
  __device__ __forceinline__ void FetchRows(const Stored* from, std::int64_t stride, const T* new_row,
                                            int start_row, int there, int new_at, T* to) const {
    const int rows = static_cast<int>(p.rows);
    if constexpr (kNarrow) {
      using Row = NarrowRow<T, kColumns>;
#pragma unroll
      for (int i = lane; i < kTileKeys * Row::kUnits; i += kWarp) {
        const int row = i / Row::kUnits;
        const int unit = i % Row::kUnits;
        const int in_slot = start_row + row < rows ? start_row + row : start_row + row - rows;
        const int at = row < there ? in_slot : 0;
        if (row != new_at)
          CopyAsync(Row::UnitAt(to + row * kRow, unit), from + at * stride + unit * 16, row < there);
      }
      if (new_at >= kTileKeys) return;
      for (int unit = lane; unit < kColumns / 8; unit += kWarp)
        CopyAsync(to + new_at * kRow + unit * 8, new_row + unit * 8, true);
    } else {
      constexpr int kUnits = kColumns / 8;
#pragma unroll
      for (int i = lane; i < kTileKeys * kUnits; i += kWarp) {
        const int row = i / kUnits;
        const int unit = i % kUnits;
        const int in_slot = start_row + row < rows ? start_row + row : start_row + row - rows;
        const int at = row < there ? in_slot : 0;
        const void* const source = row == new_at ? new_row + unit * 8 : from + at * stride + unit * 8;
        CopyAsync(to + row * kRow + unit * 8, source, row < there);
      }
    }
  }

  // The row that the new token has in the tile whose first key is at position `start`; kTileKeys where another tile has it.
  __device__ __forceinline__ int NewAt(std::int64_t start) const {
    return static_cast<int>(min(std::int64_t{kTileKeys}, position - start));
  }

  // Converts a tile from e4m3, whose bytes have been copied into shared memory, to T in place.
  template <int kColumns, int kRow>
  __device__ __forceinline__ void WidenRows(T* tile, int new_at) const {
    using Row = NarrowRow<T, kColumns>;
    constexpr int kEach = (kTileKeys * Row::kUnits + kWarp - 1) / kWarp;
    uint4 kept[kEach];
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int i = lane + kWarp * n;
      if (i < kTileKeys * Row::kUnits) kept[n] = *Row::UnitAt(tile + i / Row::kUnits * kRow, i % Row::kUnits);
    }
    __syncwarp();
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int i = lane + kWarp * n;
      const int row = i / Row::kUnits;
      if (i < kTileKeys * Row::kUnits && row != new_at)
        Row::Write(tile + row * kRow, i % Row::kUnits, kept[n]);
    }
    if (new_at < kTileKeys) Row::Round(tile + new_at * kRow, lane);
  }
  __device__ __forceinline__ void Widen(std::int64_t tile, int stage) const {
    if constexpr (kNarrow) {
      T* const k = stages + stage * L::kStage;
      const int new_at = NewAt(first + tile * kTileKeys);
      WidenRows<kWidth, L::kKeyRow>(k, new_at);
      WidenRows<kValueWidth, L::kValueRow>(k + kTileKeys * L::kKeyRow, new_at);
      __syncwarp();
    }
  }

  __device__ __forceinline__ void Fetch(std::int64_t tile, int stage) const {
    T* const k = stages + stage * L::kStage;
    T* const v = k + kTileKeys * L::kKeyRow;
    const std::int64_t start = first + tile * kTileKeys;
    const int start_row = static_cast<int>(start < p.rows ? start : start % p.rows);
    const int there = static_cast<int>(min(std::int64_t{kTileKeys}, end - start));
    const int new_at = NewAt(start);
    FetchRows<kWidth, L::kKeyRow>(keys, key_stride, new_key, start_row, there, new_at, k);
    FetchRows<kValueWidth, L::kValueRow>(values, value_stride, new_value, start_row, there, new_at, v);
  }

  __device__ __forceinline__ void Scores(const T* k, float (&s)[2][4]) const {
    const T* const q_row = queries + (lane % 16) * L::kKeyRow + (lane / 16) * 8;
    const T* const k_row = k + (lane % 8 + lane / 16 * 8) * L::kKeyRow + (lane / 8 % 2) * 8;
#pragma unroll
    for (int e = 0; e < kWidth; e += 16) {
      std::uint32_t a[4];
      std::uint32_t b[4];
      LoadMatrices<false>(a, q_row + e);
      LoadMatrices<false>(b, k_row + e);
      MultiplyTile(T(), s[0], a, b[0], b[1]);
      MultiplyTile(T(), s[1], a, b[2], b[3]);
    }
  }

  // `head`: of row lane / 4, and slopes of both rows.
  __device__ __forceinline__ void Take(std::int64_t tile, int stage, std::int64_t head, int heads,
                                       const float (&slope)[2], RunningTile<kValueWidth>* running) const {
    const T* const k = stages + stage * L::kStage;
    const T* const v = k + kTileKeys * L::kKeyRow;
    float s[2][4] = {};
    Scores(k, s);
    const std::int64_t start = first + tile * kTileKeys;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4 + 8 * half;
      float top = running->top[half];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const std::int64_t j = start + 8 * n + lane % 4 * 2 + i;
          float& score = s[n][2 * half + i];
          score = j < end && row < heads
                      ? Bent<T>(p, score * p.scale, slope[half], head + 8 * half, position, j - position)
                      : kNone;
          top = fmaxf(top, score);
        }
      }
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
      const float shrink = exp2f(running->top[half] - top);
      float sum = 0;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& score = s[n][2 * half + i];
          score = score > kNone ? exp2f(score - top) : 0.0F;
          sum += score;
        }
      }
      running->sum[half] = running->sum[half] * shrink + sum;
      running->top[half] = top;
#pragma unroll
      for (int e = 0; e < kValueWidth / 8; ++e) {
        running->o[e][2 * half] *= shrink;
        running->o[e][2 * half + 1] *= shrink;
      }
    }
    const std::uint32_t a[4] = {PairFromFloat(T(), s[0][0], s[0][1]), PairFromFloat(T(), s[0][2], s[0][3]),
                                PairFromFloat(T(), s[1][0], s[1][1]), PairFromFloat(T(), s[1][2], s[1][3])};
    const T* const v_row = v + (lane % 16) * L::kValueRow + (lane / 16) * 8;
#pragma unroll
    for (int e = 0; e < kValueWidth; e += 16) {
      std::uint32_t b[4];
      LoadMatrices<true>(b, v_row + e);
      MultiplyTile(T(), running->o[e / 8], a, b[0], b[1]);
      MultiplyTile(T(), running->o[e / 8 + 1], a, b[2], b[3]);
    }
  }
};

// grid: chunks, kv heads × tiles of 16 query heads, samples.
template <typename T, typename Stored, int kWidth, int kValueWidth>
__global__ void __launch_bounds__(kThreads) AttendTiles(CachedAttention p, int chunks) {
  using L = Layout<kWidth, kValueWidth>;
  extern __shared__ __align__(16) unsigned char shared[];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t token = blockIdx.z;
  const std::int64_t group = p.heads / p.kv_heads;
  const int tiles = static_cast<int>((group + kTileHeads - 1) / kTileHeads);
  const std::int64_t kv = blockIdx.y / tiles;
  const std::int64_t in_group = blockIdx.y % tiles * kTileHeads;
  const std::int64_t head = kv * group + in_group;  // the tile's first
  const int heads = static_cast<int>(min(std::int64_t{kTileHeads}, group - in_group));
  const std::int64_t slot = p.slots[token];
  const std::int64_t position = p.positions[token];
  const Seen seen = SeenBy(p.window, position);
  const std::int64_t first = seen.first + static_cast<std::int64_t>(blockIdx.x) * p.chunk;
  const bool idle = slot < 0 || first >= seen.end;
  LetNextBegin();
  if (idle && chunks > 1) {  // the sum leaves it out
    AwaitEarlier();
    return;
  }
  auto* const queries = reinterpret_cast<T*>(shared);
  const std::int64_t end = idle ? first : min(seen.end, first + p.chunk);
  const std::int64_t row = p.rows * p.kv_heads;  // of a slot, in heads
  const std::int64_t at = idle ? 0 : slot;
  const Warp<T, Stored, kWidth, kValueWidth> of = {
      p,
      queries,
      queries + L::kQueries + warp * L::kStages * L::kStage,
      static_cast<const Stored*>(p.keys) + (at * row + kv) * kWidth,
      static_cast<const Stored*>(p.values) + (at * row + kv) * kValueWidth,
      static_cast<const T*>(p.k) + (token * p.kv_heads + kv) * kWidth,
      static_cast<const T*>(p.v) + (token * p.kv_heads + kv) * kValueWidth,
      p.kv_heads * kWidth,
      p.kv_heads * kValueWidth,
      position,
      first,
      end,
      lane};
  const std::int64_t count = (of.end - of.first + kTileKeys - 1) / kTileKeys;
  RunningTile<kValueWidth> running;
  float slope[2];
  const std::int64_t row_head = head + lane / 4;
  slope[0] = SlopeOf(p, row_head);
  slope[1] = SlopeOf(p, row_head + 8);
  // Tile t of this warp is the chunk's tile warp + 4·t.
  const std::int64_t mine = count > warp ? (count - warp + kWarps - 1) / kWarps : 0;
  const auto has_new_token = [&](std::int64_t tile) { return first + (tile + 1) * kTileKeys > position; };
  const auto fetch_first = [&](bool of_new_token) {
#pragma unroll
    for (int stage = 0; stage < L::kStages - 1; ++stage) {
      const std::int64_t tile = warp + std::int64_t{kWarps} * stage;
      if (stage < mine && has_new_token(tile) == of_new_token) of.Fetch(tile, stage);
    }
  };
  fetch_first(false);  // what steps before this one have kept
  AwaitEarlier();
  fetch_first(true);
  const T* const q = static_cast<const T*>(p.q) + (token * p.heads + head) * kWidth;
  for (int i = static_cast<int>(threadIdx.x); i < kTileHeads * kWidth / 8; i += kThreads) {
    const int q_row = i / (kWidth / 8);
    const int unit = i % (kWidth / 8);
    CopyAsync(queries + q_row * L::kKeyRow + unit * 8, q + (q_row < heads ? q_row : 0) * kWidth + unit * 8,
              q_row < heads);
  }
  // One of the blocks that have the new token keeps it; no other block reads the row that it goes to.
  if (!idle && end == seen.end && in_group == 0) KeepToken<T, Stored>(p, token, kv, slot, position);
#pragma unroll
  for (int stage = 0; stage < L::kStages - 1; ++stage) EndCopyGroup();
  for (std::int64_t t = 0; t < mine; ++t) {
    const std::int64_t next = t + L::kStages - 1;
    if (next < mine) of.Fetch(warp + kWarps * next, static_cast<int>(next % L::kStages));
    EndCopyGroup();
    WaitForCopies<L::kStages - 1>();
    if (t == 0) {
      __syncthreads();  // queries, which all warps have copied
    } else {
      __syncwarp();
    }
    of.Widen(warp + kWarps * t, static_cast<int>(t % L::kStages));
    of.Take(warp + kWarps * t, static_cast<int>(t % L::kStages), row_head, heads, slope, &running);
    __syncwarp();
  }
  if (mine == 0) {
    WaitForCopies<0>();
    __syncthreads();
  }
  // Now the sums of the four warps are added up, in the order of the warps.
  __syncthreads();
  auto* const sums = reinterpret_cast<float*>(shared);  // [warp, head, U + 2]
  constexpr int kRow = kValueWidth + 2;
  const float* const all = sums;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = running.sum[half];
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    float* const to = sums + (warp * kTileHeads + lane / 4 + 8 * half) * kRow;
#pragma unroll
    for (int e = 0; e < kValueWidth / 8; ++e) {
      to[8 * e + lane % 4 * 2] = running.o[e][2 * half];
      to[8 * e + lane % 4 * 2 + 1] = running.o[e][2 * half + 1];
    }
    if (lane % 4 == 0) {
      to[kValueWidth] = running.top[half];
      to[kValueWidth + 1] = sum;
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < heads * kValueWidth; i += kThreads) {
    const int h = i / kValueWidth;
    const int e = i % kValueWidth;
    float top = kNone;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, all[(w * kTileHeads + h) * kRow + kValueWidth]);
    float sum = 0;
    float value = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float* const from = all + (w * kTileHeads + h) * kRow;
      const float share = exp2f(from[kValueWidth] - top);
      sum += share * from[kValueWidth + 1];
      value += share * from[e];
    }
    if (chunks > 1) {
      float* const to = p.scratch + (((token * p.heads + head + h) * chunks) + blockIdx.x) * kRow;
      to[e] = value;
      if (e == 0) {
        to[kValueWidth] = top;
        to[kValueWidth + 1] = sum;
      }
      continue;
    }
    if (p.sinks != nullptr && !idle) {
      const float sink = ToFloat(static_cast<const T*>(p.sinks)[head + h]) * kLog2E;
      const float higher = fmaxf(top, sink);
      const float shrink = exp2f(top - higher);
      sum = sum * shrink + exp2f(sink - higher);
      value *= shrink;
    }
    static_cast<T*>(p.o)[(token * p.heads + head + h) * kValueWidth + e] =
        FromFloat<T>(sum > 0 ? value / sum : 0.0F);
  }
}

// A block a query and head: the chunks' sums in their order. kMostChunks: that its shared memory has factors for; of more
// they are made again where they are needed.
constexpr int kMostChunks = 256;
template <typename T>
__global__ void __launch_bounds__(kThreads) AddChunks(CachedAttention p, int chunks) {
  __shared__ float shares[kMostChunks];
  __shared__ float tops[kWarps];
  __shared__ float sums[kWarps];
  LetNextBegin();
  const std::int64_t row = blockIdx.x;  // token · heads + head
  const std::int64_t token = row / p.heads;
  const std::int64_t head = row % p.heads;
  const int width = static_cast<int>(p.value_width);
  const int thread = static_cast<int>(threadIdx.x);
  const Seen seen = SeenBy(p.window, p.positions[token]);
  const bool idle = p.slots[token] < 0;
  const int filled = idle ? 0 : static_cast<int>((seen.end - seen.first + p.chunk - 1) / p.chunk);
  const float* const all = p.scratch + row * chunks * (width + 2);
  const float sink = p.sinks != nullptr ? ToFloat(static_cast<const T*>(p.sinks)[head]) * kLog2E : kNone;
  float top = sink;
  for (int c = thread; c < filled; c += kThreads) top = fmaxf(top, all[c * (width + 2) + width]);
  for (int step = kWarp / 2; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, step));
  if (thread % kWarp == 0) tops[thread / kWarp] = top;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) top = fmaxf(top, tops[w]);
  float sum = 0;
  for (int c = thread; c < filled; c += kThreads) {
    const float share = exp2f(all[c * (width + 2) + width] - top);
    if (c < kMostChunks) shares[c] = share;
    sum += share * all[c * (width + 2) + width + 1];
  }
  for (int step = kWarp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  if (thread % kWarp == 0) sums[thread / kWarp] = sum;
  __syncthreads();
  sum = p.sinks != nullptr ? exp2f(sink - top) : 0.0F;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += sums[w];
  for (int e = thread; e < width; e += kThreads) {
    float value = 0;
#pragma unroll 8
    for (int c = 0; c < filled; ++c) {
      const float share = c < kMostChunks ? shares[c] : exp2f(all[c * (width + 2) + width] - top);
      value += share * all[c * (width + 2) + e];
    }
    static_cast<T*>(p.o)[row * width + e] = FromFloat<T>(filled > 0 && sum > 0 ? value / sum : 0.0F);
  }
}

// grid: samples, kv heads.
template <typename T>
__global__ void __launch_bounds__(kThreads) KeepTokens(CachedAttention p, std::int64_t queries, int2* spans) {
  LetNextBegin();
  AwaitEarlier();
  const std::int64_t token = blockIdx.x;
  const std::int64_t slot = p.slots[token];
  const std::int64_t position = p.positions[token];
  if (slot >= 0) KeepToken<T, T>(p, token, blockIdx.y, slot, position);
  if (blockIdx.y != 0) return;
  const Seen seen = SeenBy(p.window, position);
  const int2 span = slot < 0 ? int2{0, 0} : int2{static_cast<int>(seen.first), static_cast<int>(seen.end)};
  for (std::int64_t i = threadIdx.x; i < queries; i += kThreads) spans[token * queries + i] = span;
}

template <typename T, typename Stored, int kWidth, int kValueWidth>
bool AttendBySize(const CachedAttention& p, cudaStream_t stream) {
  if (p.width != kWidth || p.value_width != kValueWidth) return false;
  constexpr int kBytes = Layout<kWidth, kValueWidth>::kBytes;
  const auto kernel = AttendTiles<T, Stored, kWidth, kValueWidth>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  const std::int64_t group = p.heads / p.kv_heads;
  const int chunks = static_cast<int>((p.rows + p.chunk - 1) / p.chunk);
  const dim3 grid(static_cast<unsigned>(chunks),
                  static_cast<unsigned>(p.kv_heads * ((group + kTileHeads - 1) / kTileHeads)),
                  static_cast<unsigned>(p.samples));
  const bool early = p.samples <= kMostEarlyRows;
  Launch(early, kernel, grid, kThreads, kBytes, stream, p, chunks);
  if (chunks == 1) return true;
  // Not early: with it a product, a norm and the next product were all waiting at once, and Llama-3 8B's steps took 8.1 ms
  // on an H100 instead of 6.3.
  AddChunks<T><<<static_cast<unsigned>(p.samples * p.heads), kThreads, 0, stream>>>(p, chunks);
  return true;
}

template <typename T, typename Stored>
bool AttendInTiles(const CachedAttention& p, cudaStream_t stream) {
  return AttendBySize<T, Stored, 64, 64>(p, stream) || AttendBySize<T, Stored, 80, 80>(p, stream) ||
         AttendBySize<T, Stored, 96, 96>(p, stream) || AttendBySize<T, Stored, 128, 128>(p, stream) ||
         AttendBySize<T, Stored, 192, 128>(p, stream) || AttendBySize<T, Stored, 256, 256>(p, stream);
}

template <typename T>
bool AttendStored(const CachedAttention& p, cudaStream_t stream) {
  return p.narrow_cache ? AttendInTiles<T, E4M3>(p, stream) : AttendInTiles<T, T>(p, stream);
}

}  // namespace

void LaunchKeepTokens(const CachedAttention& attention, std::int64_t queries, std::int32_t* spans,
                      cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(attention.samples), static_cast<unsigned>(attention.kv_heads));
  auto* const pairs = reinterpret_cast<int2*>(spans);
  const bool early = attention.samples <= kMostEarlyRows;
  if (attention.dtype == DType::kBF16) {
    Launch(early, KeepTokens<__nv_bfloat16>, grid, kThreads, 0, stream, attention, queries, pairs);
  } else {
    Launch(early, KeepTokens<__half>, grid, kThreads, 0, stream, attention, queries, pairs);
  }
}

void LaunchAddChunks(const CachedAttention& attention, int chunks, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(attention.samples * attention.heads);
  if (attention.dtype == DType::kBF16) {
    AddChunks<__nv_bfloat16><<<blocks, kThreads, 0, stream>>>(attention, chunks);
  } else {
    AddChunks<__half><<<blocks, kThreads, 0, stream>>>(attention, chunks);
  }
}

void LaunchCachedAttention(const CachedAttention& attention, cudaStream_t stream) {
  const bool done = attention.dtype == DType::kBF16  ? AttendStored<__nv_bfloat16>(attention, stream)
                    : attention.dtype == DType::kF16 ? AttendStored<__half>(attention, stream)
                                                     : false;
  if (!done) LaunchCachedAttentionOfAnySize(attention, stream);
}

}  // namespace engine::backend::cuda
