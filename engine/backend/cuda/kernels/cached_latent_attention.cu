// Attention of single queries over caches of latents. A block has up to 64 heads of one sample and a chunk of keys, and reads
// each latent once for all of them: as the part of the key that it is, and as the value (FlashMLA's idea; running softmax as in
// FlashAttention-2, Dao, arXiv:2307.08691; chunks as in Flash-Decoding). Its eight warps share a tile of keys: first each makes
// scores of some heads and keys, then rows of scores become shares, then each warp adds up the latents' columns that are its own.
// Where there are several chunks, another kernel adds these up in their order.
#include "engine/backend/cuda/kernels/cached_latent_attention.h"

#include <algorithm>

#include "engine/backend/cuda/kernels/cache.cuh"
#include "engine/backend/cuda/kernels/cached_attention.h"
#include "engine/backend/cuda/kernels/early.cuh"
#include "engine/backend/cuda/kernels/mma.cuh"
#include "engine/backend/cuda/kernels/tiles.cuh"
#include "engine/backend/cuda/kernels/vector.cuh"
#include "engine/backend/cuda/profile/latent_tiles.h"

namespace engine::backend::cuda {
namespace {

constexpr float kLog2E = 1.4426950408889634F;
constexpr float kNone = -3.0e38F;  // the largest score of no key

// The new token's latent and shared part to their rows of the caches.
template <typename T, typename Stored>
__device__ __forceinline__ void KeepToken(const CachedLatentAttention& p, std::int64_t sample,
                                          std::int64_t slot, std::int64_t position) {
  const std::int64_t row = slot * p.rows + position % p.rows;
  for (std::int64_t e = threadIdx.x; e < p.width; e += blockDim.x)
    static_cast<Stored*>(p.latents)[row * p.width + e] =
        ToKeep<Stored>(static_cast<const T*>(p.latent)[sample * p.width + e]);
  for (std::int64_t e = threadIdx.x; e < p.shared_width; e += blockDim.x) {
    static_cast<Stored*>(p.shareds)[row * p.shared_width + e] =
        ToKeep<Stored>(static_cast<const T*>(p.shared)[sample * p.shared_width + e]);
  }
}

// ------------------------------------------------------------------------------------------------ in tiles

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr int kC = static_cast<int>(kLatentTile);
constexpr int kR = static_cast<int>(kSharedTile);
constexpr int kKey = kC + kR;              // elements of a whole key
constexpr int kUnits = kKey / 8;           // of 16 bytes
constexpr int kColumns = kC / kWarps / 8;  // eights of columns of a warp

// Shared memory of a block. Rows have 16 bytes more than their elements, so that matrices are read without conflicts.
template <int kHeads>
struct Layout {
  static constexpr int kKeys = kHeads == 64 ? 32 : 64;  // of a tile
  static constexpr int kStages = 2;
  static constexpr int kRow = kKey + 8;
  static constexpr int kScoreRow = kKeys + 4;  // fp32
  static constexpr int kShareRow = kKeys + 8;
  static constexpr int kQueries = kHeads * kRow;
  static constexpr int kStage = kKeys * kRow;
  static constexpr int kShares = kHeads * kShareRow;
  static constexpr int kNarrowBytes = 2 * (kQueries + kStages * kStage + kShares);
  static constexpr int kBytes = kNarrowBytes + 4 * (kHeads * kScoreRow + kHeads);
  static constexpr int kScoreEights =
      kHeads / 16 * (kKeys / 8) / kWarps;                // of keys, that a warp makes scores of
  static constexpr int kRowThreads = kThreads / kHeads;  // that make shares of a row of scores
  static_assert(kScoreEights >= 1 && kKeys % (8 * kScoreEights) == 0 && kNarrowBytes % 16 == 0);
};

// A row of queries or keys: latents of C elements, then shared parts of R.
template <typename T>
__device__ __forceinline__ void CopyUnit(T* to, const T* latent, const T* shared, int unit, bool there) {
  const T* const from = unit < kC / 8 ? latent + unit * 8 : shared + (unit - kC / 8) * 8;
  CopyAsync(to + unit * 8, from, there);
}

// `Stored`: what the caches keep numbers as.
template <typename T, typename Stored, int kHeads>
struct Block {
  using L = Layout<kHeads>;
  using Narrow = NarrowRow<T, kKey>;
  static constexpr bool kNarrow = !std::is_same_v<T, Stored>;

  const CachedLatentAttention& p;
  std::int64_t sample, slot, position;
  std::int64_t first, end;  // positions of the chunk's keys
  int head, heads;          // the tile's first one, and how many it has
  T* queries;
  T* stages;
  T* shares;
  float* scores;
  float* shrinks;  // [heads]

  __device__ __forceinline__ void FetchQueries() const {
    const std::int64_t row = sample * p.heads + head;
    const T* const q = static_cast<const T*>(p.q) + row * kC;
    const T* const rest = static_cast<const T*>(p.rest) + row * p.rest_width + p.first;
    for (int i = static_cast<int>(threadIdx.x); i < kHeads * kUnits; i += kThreads) {
      const int h = i / kUnits;
      const int from = h < heads ? h : 0;
      CopyUnit(queries + h * L::kRow, q + from * kC, rest + from * p.rest_width, i % kUnits, h < heads);
    }
  }

  __device__ __forceinline__ void FetchKeys(std::int64_t tile, int stage) const {
    const std::int64_t start = first + tile * L::kKeys;
    for (int i = static_cast<int>(threadIdx.x); i < L::kKeys * kUnits; i += kThreads) {
      const int key = i / kUnits;
      const std::int64_t j = start + key;
      const bool there = j < end;
      const std::int64_t row = slot * p.rows + (there ? j % p.rows : 0);
      T* const to = stages + stage * L::kStage + key * L::kRow;
      const int unit = i % kUnits;
      if (j == position) {
        CopyUnit(to, static_cast<const T*>(p.latent) + sample * kC,
                 static_cast<const T*>(p.shared) + sample * kR, unit, there);
      } else if constexpr (!kNarrow) {
        CopyUnit(to, static_cast<const T*>(p.latents) + row * kC, static_cast<const T*>(p.shareds) + row * kR,
                 unit, there);
      } else if (unit < Narrow::kUnits) {
        const Stored* const from =
            unit < kC / 16 ? static_cast<const Stored*>(p.latents) + row * kC + unit * 16
                           : static_cast<const Stored*>(p.shareds) + row * kR + (unit - kC / 16) * 16;
        CopyAsync(Narrow::UnitAt(to, unit), from, there);
      }
    }
  }

  // Converts a tile from e4m3, whose bytes have been copied into shared memory, to T in place. Each warp has rows of its own.
  __device__ __forceinline__ void Widen(std::int64_t tile, int stage) const {
    constexpr int kEach = (Narrow::kUnits + kWarp - 1) / kWarp;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    for (int key = static_cast<int>(threadIdx.x) / kWarp; key < L::kKeys; key += kWarps) {
      T* const row = stages + stage * L::kStage + key * L::kRow;
      if (first + tile * L::kKeys + key == position) {
        Narrow::Round(row, lane);
        continue;
      }
      uint4 kept[kEach];
#pragma unroll
      for (int n = 0; n < kEach; ++n) {
        if (lane + kWarp * n < Narrow::kUnits) kept[n] = *Narrow::UnitAt(row, lane + kWarp * n);
      }
      __syncwarp();
#pragma unroll
      for (int n = 0; n < kEach; ++n) {
        if (lane + kWarp * n < Narrow::kUnits) Narrow::Write(row, lane + kWarp * n, kept[n]);
      }
    }
  }

  // Each warp makes scores of 16 heads and of some eights of keys.
  __device__ __forceinline__ void MakeScores(int stage) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    const int m = warp % (kHeads / 16) * 16;
    const int n = warp / (kHeads / 16) * 8 * L::kScoreEights;
    const T* const q_row = queries + (m + lane % 16) * L::kRow + lane / 16 * 8;
    const T* const k_row = stages + stage * L::kStage + (n + lane % 8) * L::kRow + lane / 8 * 8;
    float s[L::kScoreEights][4] = {};
#pragma unroll 6
    for (int e = 0; e < kKey; e += 32) {
      std::uint32_t a[2][4];
      LoadMatrices<false>(a[0], q_row + e);
      LoadMatrices<false>(a[1], q_row + e + 16);
#pragma unroll
      for (int i = 0; i < L::kScoreEights; ++i) {
        std::uint32_t b[4];
        LoadMatrices<false>(b, k_row + 8 * i * L::kRow + e);
        MultiplyTile(T(), s[i], a[0], b[0], b[1]);
        MultiplyTile(T(), s[i], a[1], b[2], b[3]);
      }
    }
#pragma unroll
    for (int i = 0; i < L::kScoreEights; ++i) {
      float* const to = scores + (m + lane / 4) * L::kScoreRow + n + 8 * i + lane % 4 * 2;
      to[0] = s[i][0];
      to[1] = s[i][1];
      to[8 * L::kScoreRow] = s[i][2];
      to[8 * L::kScoreRow + 1] = s[i][3];
    }
  }

  // Rows of scores become shares of the largest score so far. `top` is of this thread's row, `sum` of its own keys alone.
  __device__ __forceinline__ void MakeShares(std::int64_t tile, float* top, float* sum) const {
    constexpr int kOwn = L::kKeys / L::kRowThreads;
    const int row = static_cast<int>(threadIdx.x) / L::kRowThreads;
    const int sub = static_cast<int>(threadIdx.x) % L::kRowThreads;
    const float scale = p.scale * kLog2E;
    float s[kOwn];
    float higher = *top;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int key = sub + L::kRowThreads * i;
      const bool there = first + tile * L::kKeys + key < end;
      s[i] = there ? scores[row * L::kScoreRow + key] * scale : kNone;
      higher = fmaxf(higher, s[i]);
    }
#pragma unroll
    for (int step = L::kRowThreads / 2; step > 0; step /= 2)
      higher = fmaxf(higher, __shfl_xor_sync(kAllLanes, higher, step));
    const float shrink = exp2f(*top - higher);
    float added = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const float share = s[i] > kNone ? exp2f(s[i] - higher) : 0.0F;
      shares[row * L::kShareRow + sub + L::kRowThreads * i] = FromFloat<T>(share);
      added += share;
    }
    *sum = *sum * shrink + added;
    *top = higher;
    if (sub == 0) shrinks[row] = shrink;
  }

  // Each warp adds up kColumns · 8 columns of latents for all heads.
  __device__ __forceinline__ void AddLatents(int stage, float (&z)[kHeads / 16][kColumns][4]) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
    for (int m = 0; m < kHeads / 16; ++m) {
      const float low = shrinks[16 * m + lane / 4];
      const float high = shrinks[16 * m + lane / 4 + 8];
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        z[m][n][0] *= low;
        z[m][n][1] *= low;
        z[m][n][2] *= high;
        z[m][n][3] *= high;
      }
    }
    const T* const row =
        stages + stage * L::kStage + lane % 16 * L::kRow + warp * kColumns * 8 + lane / 16 * 8;
    const T* const share_row = shares + lane % 16 * L::kShareRow + lane / 16 * 8;
#pragma unroll
    for (int key = 0; key < L::kKeys; key += 16) {
      std::uint32_t a[kHeads / 16][4];
#pragma unroll
      for (int m = 0; m < kHeads / 16; ++m)
        LoadMatrices<false>(a[m], share_row + 16 * m * L::kShareRow + key);
#pragma unroll
      for (int n = 0; n < kColumns; n += 2) {
        std::uint32_t b[4];
        LoadMatrices<true>(b, row + key * L::kRow + 8 * n);
#pragma unroll
        for (int m = 0; m < kHeads / 16; ++m) {
          MultiplyTile(T(), z[m][n], a[m], b[0], b[1]);
          MultiplyTile(T(), z[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }
};

// grid: chunks, tiles of heads, samples.
template <typename T, typename Stored, int kHeads>
__global__ void __launch_bounds__(kThreads) AttendLatentTiles(CachedLatentAttention p, int chunks) {
  using L = Layout<kHeads>;
  extern __shared__ __align__(16) unsigned char shared[];
  LetNextBegin();
  AwaitEarlier();
  const std::int64_t sample = blockIdx.z;
  const std::int64_t slot = p.slots[sample];
  const std::int64_t position = p.positions[sample];
  const Seen seen = SeenBy(p.window, position);
  const std::int64_t first = seen.first + static_cast<std::int64_t>(blockIdx.x) * p.chunk;
  const bool idle = slot < 0 || first >= seen.end;
  if (idle && chunks > 1) return;  // the sum leaves it out
  auto* const queries = reinterpret_cast<T*>(shared);
  auto* const stages = queries + L::kQueries;
  auto* const scores = reinterpret_cast<float*>(shared + L::kNarrowBytes);
  const int head = static_cast<int>(blockIdx.y) * kHeads;
  const Block<T, Stored, kHeads> block = {p,
                                          sample,
                                          max(slot, std::int64_t{0}),
                                          position,
                                          first,
                                          idle ? first : min(seen.end, first + p.chunk),
                                          head,
                                          min(kHeads, static_cast<int>(p.heads) - head),
                                          queries,
                                          stages,
                                          stages + L::kStages * L::kStage,
                                          scores,
                                          scores + kHeads * L::kScoreRow};
  const std::int64_t tiles = (block.end - first + L::kKeys - 1) / L::kKeys;
  float z[kHeads / 16][kColumns][4] = {};
  float top = kNone;
  float sum = 0;
  block.FetchQueries();
  if (tiles > 0) block.FetchKeys(0, 0);
  EndCopyGroup();
  // One of the blocks that have the new token keeps it; no block reads the row that it goes to.
  if (!idle && block.end == seen.end && blockIdx.y == 0) KeepToken<T, Stored>(p, sample, slot, position);
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    const int stage = static_cast<int>(tile % L::kStages);
    if (tile + 1 < tiles) block.FetchKeys(tile + 1, 1 - stage);
    EndCopyGroup();
    WaitForCopies<1>();
    __syncthreads();  // the tile, which all threads have copied
    if constexpr (!std::is_same_v<T, Stored>) {
      block.Widen(tile, stage);
      __syncthreads();
    }
    block.MakeScores(stage);
    __syncthreads();
    block.MakeShares(tile, &top, &sum);
    __syncthreads();
    block.AddLatents(stage, z);
    __syncthreads();  // before its stage, scores and shares are written again
  }
  WaitForCopies<0>();
#pragma unroll
  for (int step = L::kRowThreads / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  float* const tops = scores;  // [heads, 2]: the largest score and the sum of a row
  if (threadIdx.x % L::kRowThreads == 0) {
    tops[threadIdx.x / L::kRowThreads * 2] = top;
    tops[threadIdx.x / L::kRowThreads * 2 + 1] = sum;
  }
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
  for (int m = 0; m < kHeads / 16; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int h = 16 * m + 8 * half + lane / 4;
      if (h >= block.heads) continue;
      const std::int64_t row = sample * p.heads + head + h;
      float* const to = p.scratch + (row * chunks + blockIdx.x) * (kC + 2);
      const float all = tops[2 * h + 1];
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        const int e = (warp * kColumns + n) * 8 + lane % 4 * 2;
        const float low = z[m][n][2 * half];
        const float high = z[m][n][2 * half + 1];
        if (chunks > 1) {
          *reinterpret_cast<float2*>(to + e) = {low, high};
        } else {
          const float by = all > 0 ? 1 / all : 0.0F;
          *reinterpret_cast<std::uint32_t*>(static_cast<T*>(p.z) + row * kC + e) =
              PairFromFloat(T(), low * by, high * by);
        }
      }
      if (chunks > 1 && warp == 0 && lane % 4 == 0) {
        to[kC] = tops[2 * h];
        to[kC + 1] = all;
      }
    }
  }
}

template <typename T, typename Stored, int kHeads>
void AttendTiles(const CachedLatentAttention& p, cudaStream_t stream) {
  constexpr int kBytes = Layout<kHeads>::kBytes;
  const auto kernel = AttendLatentTiles<T, Stored, kHeads>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  const int chunks = static_cast<int>((p.rows + p.chunk - 1) / p.chunk);
  const dim3 grid(static_cast<unsigned>(chunks), static_cast<unsigned>((p.heads + kHeads - 1) / kHeads),
                  static_cast<unsigned>(p.samples));
  Launch(p.samples <= kMostEarlyRows, kernel, grid, kThreads, kBytes, stream, p, chunks);
  if (chunks == 1) return;
  const CachedAttention sums = {.dtype = p.dtype,
                                .samples = p.samples,
                                .heads = p.heads,
                                .kv_heads = 1,
                                .width = kKey,
                                .value_width = kC,
                                .rows = p.rows,
                                .window = p.window,
                                .positions = p.positions,
                                .slots = p.slots,
                                .o = p.z,
                                .chunk = p.chunk,
                                .scratch = p.scratch};
  LaunchAddChunks(sums, chunks, stream);
}

template <typename T, typename Stored>
void AttendInTiles(const CachedLatentAttention& p, cudaStream_t stream) {
  switch (LatentTileHeads(p.heads)) {
    case 16:
      return AttendTiles<T, Stored, 16>(p, stream);
    case 32:
      return AttendTiles<T, Stored, 32>(p, stream);
    default:
      return AttendTiles<T, Stored, 64>(p, stream);
  }
}

// ------------------------------------------------------------------------------------------------ of any size

// A block a query and head, whose warps take keys in turns and add up in their order. Shared memory: [warp, C].
constexpr int kAnyWarps = 4;
template <typename T, typename Stored>
__global__ void __launch_bounds__(kAnyWarps* kWarp) AttendLatents(CachedLatentAttention p) {
  __shared__ float tops[kAnyWarps], sums[kAnyWarps];
  extern __shared__ __align__(16) unsigned char shared[];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  auto* const parts = reinterpret_cast<float*>(shared);
  float* const z = parts + warp * p.width;
  LetNextBegin();
  AwaitEarlier();
  const std::int64_t row = blockIdx.x;
  const std::int64_t sample = row / p.heads;
  const std::int64_t slot = p.slots[sample];
  const std::int64_t position = p.positions[sample];
  const Seen seen = SeenBy(p.window, position);
  const T* const q = static_cast<const T*>(p.q) + row * p.width;
  const T* const rest = static_cast<const T*>(p.rest) + row * p.rest_width + p.first;
  if (slot >= 0 && row % p.heads == 0) KeepToken<T, Stored>(p, sample, slot, position);
  for (std::int64_t e = lane; e < p.width; e += kWarp) z[e] = 0;
  float top = kNone;
  float sum = 0;
  for (std::int64_t j = seen.first + warp; slot >= 0 && j < seen.end; j += kAnyWarps) {
    const std::int64_t at = slot * p.rows + j % p.rows;
    const bool is_new = j == position;
    const T* const new_latent = static_cast<const T*>(p.latent) + sample * p.width;
    const T* const new_key = static_cast<const T*>(p.shared) + sample * p.shared_width;
    const Stored* const latent = static_cast<const Stored*>(p.latents) + at * p.width;
    const Stored* const key = static_cast<const Stored*>(p.shareds) + at * p.shared_width;
    const auto latent_at = [&](std::int64_t e) {
      return ToFloat(is_new ? ToKeep<Stored>(new_latent[e]) : latent[e]);
    };
    float dot = 0;
    for (std::int64_t e = lane; e < p.width; e += kWarp) dot += ToFloat(q[e]) * latent_at(e);
    for (std::int64_t e = lane; e < p.shared_width; e += kWarp)
      dot += ToFloat(rest[e]) * ToFloat(is_new ? ToKeep<Stored>(new_key[e]) : key[e]);
    for (int step = kWarp / 2; step > 0; step /= 2) dot += __shfl_xor_sync(kAllLanes, dot, step);
    const float score = dot * p.scale * kLog2E;
    const float higher = fmaxf(top, score);
    const float shrink = exp2f(top - higher);
    const float share = exp2f(score - higher);
    sum = sum * shrink + share;
    top = higher;
    for (std::int64_t e = lane; e < p.width; e += kWarp) z[e] = z[e] * shrink + share * latent_at(e);
  }
  if (lane == 0) {
    tops[warp] = top;
    sums[warp] = sum;
  }
  __syncthreads();
  float all_top = kNone;
  for (const float of : tops) all_top = fmaxf(all_top, of);
  for (std::int64_t e = threadIdx.x; e < p.width; e += blockDim.x) {
    float all = 0;
    float value = 0;
    for (int w = 0; w < kAnyWarps; ++w) {
      const float share = exp2f(tops[w] - all_top);
      all += share * sums[w];
      value += share * parts[w * p.width + e];
    }
    static_cast<T*>(p.z)[row * p.width + e] = FromFloat<T>(slot >= 0 && all > 0 ? value / all : 0.0F);
  }
}

template <typename T, typename Stored>
void AttendAny(const CachedLatentAttention& p, cudaStream_t stream) {
  const auto bytes = static_cast<std::size_t>(kAnyWarps * p.width) * sizeof(float);
  cudaFuncSetAttribute(AttendLatents<T, Stored>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(bytes));
  Launch(p.samples <= kMostEarlyRows, AttendLatents<T, Stored>, static_cast<unsigned>(p.samples * p.heads),
         kAnyWarps * kWarp, bytes, stream, p);
}

template <typename T, typename Stored>
void AttendStored(const CachedLatentAttention& p, cudaStream_t stream) {
  p.tiles ? AttendInTiles<T, Stored>(p, stream) : AttendAny<T, Stored>(p, stream);
}

template <typename T>
void AttendNarrow(const CachedLatentAttention& p, cudaStream_t stream) {
  p.narrow_cache ? AttendStored<T, E4M3>(p, stream) : AttendStored<T, T>(p, stream);
}

}  // namespace

void LaunchCachedLatentAttention(const CachedLatentAttention& attention, cudaStream_t stream) {
  switch (attention.dtype) {
    case DType::kBF16:
      return AttendNarrow<__nv_bfloat16>(attention, stream);
    case DType::kF16:
      return AttendNarrow<__half>(attention, stream);
    default:
      return attention.narrow_cache ? AttendAny<float, E4M3>(attention, stream)
                                    : AttendAny<float, float>(attention, stream);
  }
}

}  // namespace engine::backend::cuda
