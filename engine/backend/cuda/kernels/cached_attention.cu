// Attention of single queries over caches, of heads that share keys: memory sets its time, so that keys and values are read once
// for all query heads that share them. A block has the heads of one group (16 at a time, the rows of the tensor cores' tiles) and a chunk of
// keys; its four warps take tiles of 16 keys in turns, each with a pipeline of its own, and add up at the end
// (FlashAttention-2's order, Dao, arXiv:2307.08691; chunks as in Flash-Decoding). Where there are several chunks, another
// kernel adds these up in their order.
//
// Caches in e4m3 stay so in shared memory: numbers become halves, which hold them exactly, on their way from there to the tensor
// cores, and queries are halves, too, scaled by a power of two. A load of matrices of 16-bit units gives a thread pairs of numbers
// in another order than products want: queries lie in shared memory in that order, and sums come out in it.
#include "engine/backend/cuda/kernels/cached_attention.cuh"

#include <algorithm>

#include "engine/backend/cuda/kernels/cache.cuh"
#include "engine/backend/cuda/kernels/early.cuh"
#include "engine/backend/cuda/kernels/mma.cuh"
#include "engine/backend/cuda/kernels/tiles.cuh"
#include "engine/backend/cuda/kernels/vector.cuh"
#include "engine/backend/cuda/profile/cached_attention_tiles.h"
#include "engine/graph/alibi.h"

namespace engine::backend::cuda {
namespace {

constexpr int kTileKeys = 16;
constexpr int kTileHeads = 16;

// Shared memory of a block, in bytes. Rows have 16 bytes more than their elements, so that matrices are read without conflicts, or, of 80
// numbers of e4m3, with few.
template <typename Stored, int kWidth, int kValueWidth>
struct Layout {
  static constexpr int kElement = sizeof(Stored);
  // A multiprocessor has room for four blocks of caches in e4m3, where keys and values are not too wide for that.
  static constexpr int kStages = (kWidth + kValueWidth) * kElement > 512 ||
                                         (kElement == 1 && kWidth + kValueWidth > 192)
                                     ? 2
                                     : 3;
  static constexpr int kBlocks = kElement == 1 && HasNarrowBlocks(kWidth, kValueWidth) ? kNarrowBlocks : 1;
  static constexpr int kKeyRow = kWidth * kElement + 16;
  static constexpr int kValueRow = kValueWidth * kElement + 16;
  static constexpr int kStage = kTileKeys * (kKeyRow + kValueRow);  // of a warp
  static constexpr int kQueryRow = 2 * kWidth + 16;
  static constexpr int kQueries = kTileHeads * kQueryRow;
  static constexpr int kPipeline = kQueries + kWarps * kStages * kStage;
  static constexpr int kSums = 4 * kWarps * kTileHeads * (kValueWidth + 2);  // at the end
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
  using L = Layout<Stored, kWidth, kValueWidth>;
  static constexpr bool kNarrow = !std::is_same_v<T, Stored>;
  using Operand = std::conditional_t<kNarrow, __half, T>;  // of products

  const CachedAttention& p;
  unsigned char* queries;
  unsigned char* stages;  // of this warp
  const Stored* keys;     // of the slot and kv head
  const Stored* values;   // likewise
  const T* new_key;       // at `position`
  const T* new_value;     // likewise
  std::int64_t key_stride, value_stride;
  std::int64_t position;
  std::int64_t first, end;  // positions of the chunk's keys
  int lane;

  // Rows of a slot are no more than an int counts, and the keys that a query sees no more than there are rows.
  template <int kColumns, int kRow>
  __device__ __forceinline__ void FetchRows(const Stored* from, std::int64_t stride, const T* new_row,
                                            int start_row, int there, int new_at, unsigned char* to) const {
    constexpr int kOfUnit = 16 / L::kElement;  // numbers of 16 bytes
    constexpr int kUnits = kColumns / kOfUnit;
    static_assert(kColumns % kOfUnit == 0);
    const int rows = static_cast<int>(p.rows);
#pragma unroll
    for (int i = lane; i < kTileKeys * kUnits; i += kWarp) {
      const int row = i / kUnits;
      const int unit = i % kUnits;
      const int in_slot = start_row + row < rows ? start_row + row : start_row + row - rows;
      const int at = row < there ? in_slot : 0;
      const void* source = from + at * stride + unit * kOfUnit;
      if constexpr (kNarrow) {
        if (row == new_at) continue;
      } else {
        if (row == new_at) source = new_row + unit * kOfUnit;
      }
      CopyAsync(to + row * kRow + unit * 16, source, row < there);
    }
    if constexpr (kNarrow) {
      if (new_at >= kTileKeys) return;
      for (int e = 2 * lane; e < kColumns; e += 2 * kWarp) {
        const float2 pair = PairToFloat(T(), *reinterpret_cast<const std::uint32_t*>(new_row + e));
        *reinterpret_cast<std::uint16_t*>(to + new_at * kRow + e) =
            __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);
      }
    }
  }

  // The row that the new token has in the tile whose first key is at position `start`; kTileKeys where another tile has it.
  __device__ __forceinline__ int NewAt(std::int64_t start) const {
    return static_cast<int>(min(std::int64_t{kTileKeys}, position - start));
  }

  __device__ __forceinline__ void Fetch(std::int64_t tile, int stage) const {
    unsigned char* const k = stages + stage * L::kStage;
    unsigned char* const v = k + kTileKeys * L::kKeyRow;
    const std::int64_t start = first + tile * kTileKeys;
    const int start_row = static_cast<int>(start < p.rows ? start : start % p.rows);
    const int there = static_cast<int>(min(std::int64_t{kTileKeys}, end - start));
    const int new_at = NewAt(start);
    FetchRows<kWidth, L::kKeyRow>(keys, key_stride, new_key, start_row, there, new_at, k);
    FetchRows<kValueWidth, L::kValueRow>(values, value_stride, new_value, start_row, there, new_at, v);
  }

  // Where number e of a query lies in its row: of each 16 numbers, those that a thread has of a key's 4·i … 4·i + 3 are columns
  // 2·i, 2·i + 1, 2·i + 8 and 2·i + 9 of a product.
  __device__ __forceinline__ static int QueryColumn(int e) {
    return kNarrow ? e / 16 * 16 + e % 4 / 2 * 8 + e % 16 / 4 * 2 + e % 2 : e;
  }
  // Writes a query's numbers [8·unit, 8·unit + 8), times a power of two.
  __device__ __forceinline__ void PutQuery(int row, int unit, const float (&x)[8], float scale) const {
    auto* const to = reinterpret_cast<Operand*>(queries + row * L::kQueryRow);
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      *reinterpret_cast<std::uint32_t*>(to + QueryColumn(8 * unit + i)) =
          PairFromFloat(Operand(), x[i] * scale, x[i + 1] * scale);
    }
  }

  // The even or the odd bytes of a register, which are numbers of two keys, as halves.
  __device__ __forceinline__ static std::uint32_t WidenedOfKeys(std::uint32_t four, bool odd) {
    return WidenedPair<__half>(__byte_perm(four, 0, odd ? 0x4431 : 0x4420));
  }

  __device__ __forceinline__ void Scores(const unsigned char* k, float (&s)[2][4]) const {
    const unsigned char* const q_row = queries + (lane % 16) * L::kQueryRow + (lane / 16) * 16;
    // Keys 0 … 7 and 8 … 15, 16 bytes of each, then the next 16 bytes; or those of eight keys first.
    const int key = kNarrow ? lane % 16 : lane % 8 + lane / 16 * 8;
    const int part = kNarrow ? lane / 16 : lane / 8 % 2;
    const unsigned char* const k_row = k + key * L::kKeyRow + part * 16;
    constexpr int kOfLoad = 32 / L::kElement;
#pragma unroll
    for (int e = 0; e < kWidth; e += kOfLoad) {
      std::uint32_t b[4];
      LoadMatrices<false>(b, k_row + e * L::kElement);
#pragma unroll
      for (int step = 0; step < kOfLoad / 16; ++step) {
        if (e + 16 * step >= kWidth) break;  // of the bytes between rows
        std::uint32_t a[4];
        LoadMatrices<false>(a, q_row + 2 * (e + 16 * step));
        if constexpr (kNarrow) {
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            const std::uint32_t four = b[2 * step + n];
            MultiplyTile(Operand(), s[n], a, WidenedPair<__half>(four & 0xFFFFU),
                         WidenedPair<__half>(four >> 16));
          }
        } else {
          MultiplyTile(Operand(), s[0], a, b[0], b[1]);
          MultiplyTile(Operand(), s[1], a, b[2], b[3]);
        }
      }
    }
  }

  __device__ __forceinline__ void AddValues(const unsigned char* v, const float (&s)[2][4],
                                            RunningTile<kValueWidth>* running) const {
    const std::uint32_t a[4] = {
        PairFromFloat(Operand(), s[0][0], s[0][1]), PairFromFloat(Operand(), s[0][2], s[0][3]),
        PairFromFloat(Operand(), s[1][0], s[1][1]), PairFromFloat(Operand(), s[1][2], s[1][3])};
    const unsigned char* const v_row = v + (lane % 16) * L::kValueRow + (lane / 16) * 16;
    constexpr int kOfLoad = 32 / L::kElement;
#pragma unroll
    for (int e = 0; e < kValueWidth; e += kOfLoad) {
      std::uint32_t b[4];
      LoadMatrices<true>(b, v_row + e * L::kElement);
      if constexpr (kNarrow) {
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          if (e + 16 * step >= kValueWidth) break;
#pragma unroll
          for (int odd = 0; odd < 2; ++odd) {
            MultiplyTile(Operand(), running->o[e / 8 + 2 * step + odd], a,
                         WidenedOfKeys(b[2 * step], odd != 0), WidenedOfKeys(b[2 * step + 1], odd != 0));
          }
        }
      } else {
        MultiplyTile(Operand(), running->o[e / 8], a, b[0], b[1]);
        MultiplyTile(Operand(), running->o[e / 8 + 1], a, b[2], b[3]);
      }
    }
  }
  // The element of a head that is o[tile][i] of this lane, or [i + 2] of the row eight further down.
  __device__ __forceinline__ int ElementOf(int tile, int i) const {
    return kNarrow ? tile / 2 * 16 + lane % 4 * 4 + 2 * i + tile % 2 : 8 * tile + lane % 4 * 2 + i;
  }

  // `head`: of row lane / 4; slopes of both rows, and what their products are multiplied by. kHalves: of the 16 rows, those of heads
  // lie in the first eight, or in all.
  template <int kHalves>
  __device__ __forceinline__ void Take(std::int64_t tile, int stage, std::int64_t head, int heads, bool bends,
                                       const float (&slope)[2], const float (&scale)[2],
                                       RunningTile<kValueWidth>* running) const {
    const unsigned char* const k = stages + stage * L::kStage;
    const unsigned char* const v = k + kTileKeys * L::kKeyRow;
    float s[2][4] = {};
    Scores(k, s);
    const std::int64_t start = first + tile * kTileKeys;
    const auto there = static_cast<int>(min(std::int64_t{kTileKeys}, end - start));  // keys
    const auto key_of = [&](int n, int i) { return 8 * n + lane % 4 * 2 + i; };
    if (bends) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        if (lane / 4 + 8 * half >= heads) continue;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& score = s[i / 2][2 * half + i % 2];
          const std::int64_t distance = start + min(key_of(i / 2, i % 2), there - 1) - position;
          score = Bent<T>(p, score * scale[half], slope[half], head + 8 * half, position, distance);
        }
      }
    } else {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[i / 2][2 * half + i % 2] *= scale[half] * kLog2E;
      }
    }
    if (there < kTileKeys) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (key_of(i / 2, i % 2) >= there) s[i / 2][2 * half + i % 2] = kNone;
        }
      }
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      float top = fmaxf(fmaxf(s[0][2 * half], s[0][2 * half + 1]), fmaxf(s[1][2 * half], s[1][2 * half + 1]));
      top = fmaxf(top, running->top[half]);
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
      if (__any_sync(kAllLanes, top > running->top[half])) {  // after the first tiles few are
        const float shrink = exp2f(running->top[half] - top);
        running->sum[half] *= shrink;
        running->top[half] = top;
#pragma unroll
        for (int e = 0; e < kValueWidth / 8; ++e) {
          running->o[e][2 * half] *= shrink;
          running->o[e][2 * half + 1] *= shrink;
        }
      }
      // Each tile has a key: the largest score is one of a key, and of what is no key this is 0. (Where biases have made all scores of
      // a row −∞, it is 1 of values that are 0, until a key that is seen shrinks it to 0.)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& score = s[i / 2][2 * half + i % 2];
        score = exp2f(score - top);
        running->sum[half] += score;
      }
    }
    AddValues(v, s, running);
  }
};

// grid: chunks, kv heads × tiles of 16 query heads, samples.
template <typename T, typename Stored, int kWidth, int kValueWidth>
__global__ void __launch_bounds__(kThreads, Layout<Stored, kWidth, kValueWidth>::kBlocks)
    AttendTiles(CachedAttention p, int chunks) {
  using L = Layout<Stored, kWidth, kValueWidth>;
  using Warp = Warp<T, Stored, kWidth, kValueWidth>;
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ float scales[kTileHeads];  // of scores
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
  const std::int64_t end = idle ? first : min(seen.end, first + p.chunk);
  const std::int64_t row = p.rows * p.kv_heads;  // of a slot, in heads
  const std::int64_t at = idle ? 0 : slot;
  const Warp of = {p,
                   shared,
                   shared + L::kQueries + warp * L::kStages * L::kStage,
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
  if constexpr (Warp::kNarrow) {
    // Each query's largest number comes between 2^13 and 2^14: no number is too large for a half, and those that are too small for
    // one are less than 2^-37 of the largest.
    for (int q_row = warp; q_row < kTileHeads; q_row += kWarps) {
      float x[8] = {};
      const bool there = q_row < heads && lane < kWidth / 8;
      if (there) Load8(q + q_row * kWidth + lane * 8, x);
      float largest = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) largest = fmaxf(largest, fabsf(x[i]));
      largest = WarpMax(largest);
      const int exponent = largest > 0 ? min(13 - ilogbf(largest), 100) : 0;
      if (lane < kWidth / 8) of.PutQuery(q_row, lane, x, ldexpf(1.0F, exponent));
      if (lane == 0) scales[q_row] = p.scale * ldexpf(1.0F, -exponent);
    }
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < kTileHeads * kWidth / 8; i += kThreads) {
      const int q_row = i / (kWidth / 8);
      const int unit = i % (kWidth / 8);
      CopyAsync(shared + q_row * L::kQueryRow + unit * 16,
                q + (q_row < heads ? q_row : 0) * kWidth + unit * 8, q_row < heads);
    }
  }
  // One of the blocks that have the new token keeps it; no other block reads the row that it goes to.
  if (!idle && end == seen.end && in_group == 0) KeepToken<T, Stored>(p, token, kv, slot, position);
#pragma unroll
  for (int stage = 0; stage < L::kStages - 1; ++stage) EndCopyGroup();
  float scale[2] = {p.scale, p.scale};
  const bool bends = p.softcap > 0 || p.biases != nullptr || p.alibi;
  for (std::int64_t t = 0; t < mine; ++t) {
    const std::int64_t next = t + L::kStages - 1;
    if (next < mine) of.Fetch(warp + kWarps * next, static_cast<int>(next % L::kStages));
    EndCopyGroup();
    WaitForCopies<L::kStages - 1>();
    if (t == 0) {
      __syncthreads();  // queries, which all warps have copied
      if constexpr (Warp::kNarrow) {
        scale[0] = scales[lane / 4];
        scale[1] = scales[lane / 4 + 8];
      }
    } else {
      __syncwarp();
    }
    const std::int64_t tile = warp + kWarps * t;
    if (heads > kTileHeads / 2) {
      of.template Take<2>(tile, static_cast<int>(t % L::kStages), row_head, heads, bends, slope, scale,
                          &running);
    } else {
      of.template Take<1>(tile, static_cast<int>(t % L::kStages), row_head, heads, bends, slope, scale,
                          &running);
    }
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
      to[of.ElementOf(e, 0)] = running.o[e][2 * half];
      to[of.ElementOf(e, 1)] = running.o[e][2 * half + 1];
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
    PutElement<T>(p, {.row = token * p.heads + head + h, .head = head + h, .chunks = chunks, .idle = idle}, e,
                  top, sum, value);
  }
}

// A block a query and head: the chunks' sums in their order, as many at a time as a warp has lanes. What they are is asked for before
// it is known how many of them there are.
template <typename T>
__global__ void __launch_bounds__(kThreads) AddChunks(CachedAttention p, int chunks) {
  LetNextBegin();
  const std::int64_t row = blockIdx.x;  // token · heads + head
  const std::int64_t token = row / p.heads;
  const std::int64_t head = row % p.heads;
  const int width = static_cast<int>(p.value_width);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float* const all = p.scratch + row * chunks * (width + 2);
  const float sink = p.sinks != nullptr ? ToFloat(static_cast<const T*>(p.sinks)[head]) * kLog2E : kNone;
  for (int first = static_cast<int>(threadIdx.x) - lane; first < width; first += kThreads) {
    const int e = first + lane;
    float top = sink;
    float sum = p.sinks != nullptr ? 1.0F : 0.0F;
    float value = 0;
    int filled = chunks;
    for (int begin = 0; begin < filled; begin += kWarp) {
      float parts[kWarp];
#pragma unroll
      for (int c = 0; c < kWarp; ++c)
        parts[c] = begin + c < chunks && e < width ? all[(begin + c) * (width + 2) + e] : 0.0F;
      const float* const own = all + (begin + lane) * (width + 2) + width;
      float own_top = begin + lane < chunks ? own[0] : kNone;
      float own_sum = begin + lane < chunks ? own[1] : 0.0F;
      if (begin == 0) {
        const Seen seen = SeenBy(p.window, p.positions[token]);
        filled = p.slots[token] < 0 ? 0 : static_cast<int>((seen.end - seen.first + p.chunk - 1) / p.chunk);
      }
      const bool is_filled = begin + lane < filled;  // else nobody has written what was read
      own_top = is_filled ? own_top : kNone;
      own_sum = is_filled ? own_sum : 0.0F;
      const float higher = fmaxf(top, WarpMax(own_top));
      const float shrink = exp2f(top - higher);
      const float share = exp2f(own_top - higher);
      top = higher;
      sum = fmaf(sum, shrink, WarpSum(share * own_sum));
      value *= shrink;
#pragma unroll
      for (int c = 0; c < kWarp; ++c) {
        const float share_of = __shfl_sync(kAllLanes, share, c);
        if (begin + c < filled) value = fmaf(share_of, parts[c], value);
      }
    }
    if (e < width)
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
  constexpr int kBytes = Layout<Stored, kWidth, kValueWidth>::kBytes;
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
  if (attention.dtype != DType::kF32 &&
      HasOwnKeys(attention.heads, attention.kv_heads, attention.width, attention.value_width))
    return LaunchCachedAttentionOfOwnKeys(attention, stream);
  const bool done = attention.dtype == DType::kBF16  ? AttendStored<__nv_bfloat16>(attention, stream)
                    : attention.dtype == DType::kF16 ? AttendStored<__half>(attention, stream)
                                                     : false;
  if (!done) LaunchCachedAttentionOfAnySize(attention, stream);
}

}  // namespace engine::backend::cuda
