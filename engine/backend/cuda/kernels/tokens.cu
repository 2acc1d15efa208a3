#include <algorithm>
#include <cub/device/device_radix_sort.cuh>

#include "engine/backend/cuda/kernels/early.cuh"
#include "engine/backend/cuda/kernels/tokens.h"
#include "engine/backend/cuda/kernels/vector.cuh"

namespace engine::backend::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kQkvThreads = 128;
constexpr int kSumThreads = 64;    // each sums up to 8 columns
constexpr int kInFlight = 4;       // rows that a sum loads before it adds the first
constexpr int kUnitsInFlight = 2;  // likewise of parts of heads

// ---- embedding --------------------------------------------------------------------------------------------

// A warp a token. Word: a part of a row that one thread copies.
template <typename Word>
__global__ void __launch_bounds__(kThreads)
    EmbeddingKernel(const std::int32_t* __restrict__ ids, std::int64_t tokens, const Word* __restrict__ table,
                    std::int64_t first_row, std::int64_t rows, int words, Word* __restrict__ y) {
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (token >= tokens) return;
  const std::int64_t row = ids[token] - first_row;
  const bool here = row >= 0 && row < rows;
  const Word* from = table + (here ? row : 0) * words;
  Word* to = y + token * words;
#pragma unroll 4
  for (int i = threadIdx.x % kWarp; i < words; i += kWarp) to[i] = here ? from[i] : Word{};
}

__global__ void __launch_bounds__(kThreads)
    RowsOfTokensKernel(const std::int32_t* __restrict__ ids, std::int64_t tokens, std::int64_t first_row,
                       std::int64_t rows, std::uint32_t* __restrict__ row_of,
                       std::uint32_t* __restrict__ index) {
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (token >= tokens) return;
  const std::int64_t row = ids[token] - first_row;
  row_of[token] = static_cast<std::uint32_t>(row >= 0 && row < rows ? row : rows);
  index[token] = static_cast<std::uint32_t>(token);
}

template <typename T, int kWide>
struct Columns {
  Pack8<T> pack;
};
template <typename T>
struct Columns<T, 1> {
  T value;
};

template <int kWide, typename T>
__device__ __forceinline__ Columns<T, kWide> LoadColumns(const T* from) {
  if constexpr (kWide == 8) {
    return {LoadPack8Streaming(from)};
  } else {
    return {*from};
  }
}
template <typename T>
__device__ __forceinline__ void StoreColumns(T* to, const Columns<T, 8>& columns) {
  StorePack8(to, columns.pack);
}
template <typename T>
__device__ __forceinline__ void StoreColumns(T* to, const Columns<T, 1>& columns) {
  *to = columns.value;
}
template <typename T>
__device__ __forceinline__ void ToFloats(const Columns<T, 8>& columns, float (&x)[8]) {
  Unpack8(columns.pack, x);
}
template <typename T>
__device__ __forceinline__ void ToFloats(const Columns<T, 1>& columns, float (&x)[1]) {
  x[0] = ToFloat(columns.value);
}
template <typename T>
__device__ __forceinline__ Columns<T, 8> FromFloats(const float (&x)[8]) {
  return {ToPack8<T>(x)};
}
template <typename T>
__device__ __forceinline__ Columns<T, 1> FromFloats(const float (&x)[1]) {
  return {FromFloat<T>(x[0])};
}
template <typename T, int kWide>
__device__ __forceinline__ void AddColumns(const Columns<T, kWide>& columns, float (&sum)[kWide]) {
  float values[kWide];
  ToFloats(columns, values);
#pragma unroll
  for (int i = 0; i < kWide; ++i) sum[i] += values[i];
}
template <typename D, int kWide>
__device__ __forceinline__ void StoreSum(D* to, const float (&sum)[kWide]) {
  if constexpr (kWide == 8) {
    Store8(to, sum);
  } else {
    *to = FromFloat<D>(sum[0]);
  }
}
template <typename D, int kWide>
__device__ __forceinline__ void AddSum(D* to, const float (&sum)[kWide]) {
  float total[kWide];
#pragma unroll
  for (int i = 0; i < kWide; ++i) total[i] = ToFloat(to[i]);
#pragma unroll
  for (int i = 0; i < kWide; ++i) total[i] += sum[i];
  StoreSum(to, total);
}

// A run: consecutive sorted tokens of one row. Piece blockIdx.x adds each run that lies within it to the
// table, and leaves the sums of its parts of other runs in partial[piece, 2, columns]: 0 of a run that began
// before, 1 of one that begins here and goes on. No row of the table is added to by two blocks.
template <typename T, typename D, int kWide>
__global__ void __launch_bounds__(kSumThreads)
    SumPiecesKernel(const std::uint32_t* __restrict__ sorted_rows,
                    const std::uint32_t* __restrict__ sorted_tokens, std::int64_t tokens,
                    const T* __restrict__ dy, std::int64_t columns, std::uint32_t rows,
                    D* __restrict__ d_table, float* __restrict__ partial) {
  constexpr std::uint32_t kNone = 0xFFFFFFFFU;
  __shared__ std::uint32_t row_of[kEmbeddingPiece + 2];  // of the piece, between its neighbours'
  __shared__ std::uint32_t token_of[kEmbeddingPiece];
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kEmbeddingPiece;
  const int count = static_cast<int>(min(std::int64_t{kEmbeddingPiece}, tokens - first));
  for (int i = threadIdx.x; i < kEmbeddingPiece + 2; i += kSumThreads) {
    const std::int64_t at = first + i - 1;
    row_of[i] = at >= 0 && at < tokens ? sorted_rows[at] : kNone;
    if (i < count) token_of[i] = sorted_tokens[first + i];
  }
  __syncthreads();
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.y) * kSumThreads + threadIdx.x) * kWide;
  if (column >= columns) return;

  float* const pieces = partial + static_cast<std::int64_t>(blockIdx.x) * 2 * columns + column;
  bool began_before = row_of[0] == row_of[1];
  float sum[kWide] = {};
  for (int from = 0; from < count; from += kInFlight) {
    Columns<T, kWide> loaded[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (from + i < count && row_of[from + i + 1] < rows) {
        loaded[i] = LoadColumns<kWide>(dy + token_of[from + i] * columns + column);
      }
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (from + i >= count) break;
      const std::uint32_t row = row_of[from + i + 1];
      if (row >= rows) return;  // they sort last
      AddColumns(loaded[i], sum);
      if (row_of[from + i + 2] == row) continue;
      if (began_before) {
        StoreSum(pieces, sum);
      } else {
        AddSum(d_table + row * columns + column, sum);
      }
      began_before = false;
#pragma unroll
      for (int j = 0; j < kWide; ++j) sum[j] = 0;
    }
  }
  if (row_of[count] == row_of[count + 1]) StoreSum(pieces + (began_before ? 0 : columns), sum);
}

// Adds the parts of a run that is longer than its piece, in order: the block of the piece where it begins.
template <typename D, int kWide>
__global__ void __launch_bounds__(kSumThreads)
    SumRunsKernel(const std::uint32_t* __restrict__ sorted_rows, std::int64_t tokens, std::int64_t columns,
                  std::uint32_t rows, D* __restrict__ d_table, const float* __restrict__ partial) {
  const std::int64_t piece = blockIdx.x;
  const std::int64_t first = piece * kEmbeddingPiece;
  const std::int64_t next = first + kEmbeddingPiece;
  if (next >= tokens) return;
  const std::uint32_t row = sorted_rows[next - 1];
  if (row >= rows || sorted_rows[next] != row || (first > 0 && sorted_rows[first - 1] == row)) return;
  std::int64_t end = tokens;  // of the run: the first token of a later row, found by halving
  for (std::int64_t low = next; low < end;) {
    const std::int64_t middle = low + (end - low) / 2;
    if (sorted_rows[middle] > row) {
      end = middle;
    } else {
      low = middle + 1;
    }
  }
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.y) * kSumThreads + threadIdx.x) * kWide;
  if (column >= columns) return;
  float sum[kWide] = {};
  AddColumns(LoadColumns<kWide>(partial + (piece * 2 + 1) * columns + column), sum);
  const std::int64_t last = (end - 1) / kEmbeddingPiece;
#pragma unroll 4
  for (std::int64_t i = piece + 1; i <= last; ++i) {
    AddColumns(LoadColumns<kWide>(partial + i * 2 * columns + column), sum);
  }
  AddSum(d_table + row * columns + column, sum);
}

// Bits of the sort's keys, which go up to `rows`.
int KeyBits(std::int64_t rows) {
  int bits = 1;
  while (bits < 32 && rows >> bits != 0) ++bits;
  return bits;
}

cudaError_t Sort(void* scratch, std::size_t* scratch_bytes, const std::uint32_t* rows,
                 std::uint32_t* sorted_rows, const std::uint32_t* tokens, std::uint32_t* sorted_tokens,
                 std::int64_t count, std::int64_t table_rows, cudaStream_t stream) {
  return cub::DeviceRadixSort::SortPairs(scratch, *scratch_bytes, rows, sorted_rows, tokens, sorted_tokens,
                                         static_cast<int>(count), 0, KeyBits(table_rows), stream);
}

// ---- packed projection ------------------------------------------------------------------------------------

// Where head `j` of a group of a token begins: in the packed tensor (kPacked: parts.q), or in its part.
template <typename T, bool kPacked>
__device__ __forceinline__ T* HeadAt(const QkvParts& parts, const QkvShape& shape, std::int64_t token,
                                     int group, int j) {
  const std::int64_t of_group = token * shape.groups + group;
  if (kPacked) return static_cast<T*>(parts.q) + (of_group * shape.per_group + j) * shape.head;
  const int queries = shape.per_group - 2;
  if (j < queries) return static_cast<T*>(parts.q) + (of_group * queries + j) * shape.head;
  return static_cast<T*>(j == queries ? parts.k : parts.v) + of_group * shape.head;
}

// Two parts of a head, of elements i and i + E/2, turned by (cos, sin) of each pair.
template <typename T, int kWide>
__device__ __forceinline__ void Turn(const float2* turn, Columns<T, kWide>& low, Columns<T, kWide>& high) {
  float x[kWide];
  float y[kWide];
  ToFloats(low, x);
  ToFloats(high, y);
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    const float a = x[i];
    const float b = y[i];
    x[i] = a * turn[i].x - b * turn[i].y;
    y[i] = b * turn[i].x + a * turn[i].y;
  }
  low = FromFloats<T>(x);
  high = FromFloats<T>(y);
}

// The same of two parts that follow one another, whose pairs are neighbours.
template <typename T, int kWide>
__device__ __forceinline__ void TurnNeighbours(const float2* turn, Columns<T, kWide>& low,
                                               Columns<T, kWide>& high) {
  float x[2 * kWide];
  float part[kWide];
  ToFloats(low, part);
#pragma unroll
  for (int i = 0; i < kWide; ++i) x[i] = part[i];
  ToFloats(high, part);
#pragma unroll
  for (int i = 0; i < kWide; ++i) x[kWide + i] = part[i];
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    const float a = x[2 * i];
    const float b = x[2 * i + 1];
    x[2 * i] = a * turn[i].x - b * turn[i].y;
    x[2 * i + 1] = b * turn[i].x + a * turn[i].y;
  }
#pragma unroll
  for (int i = 0; i < kWide; ++i) part[i] = x[i];
  low = FromFloats<T>(part);
#pragma unroll
  for (int i = 0; i < kWide; ++i) part[i] = x[kWide + i];
  high = FromFloats<T>(part);
}

enum class Turning {
  kNone,
  kHalves,  // of whole heads
  kAny,     // of parts of heads, or neighbours
};

// Where in a head the kWide pairs from pair `at` on stand: two parts of kWide elements. Elements that are not turned are
// pairs too, of their two halves.
struct PairPlace {
  int low, high;
  bool turned;
};
template <int kWide, Turning kTurning>
__device__ __forceinline__ PairPlace PairsFrom(const Rotation& rotation, int head, int at) {
  if constexpr (kTurning == Turning::kHalves) return {at, at + rotation.half, true};
  if (rotation.interleaved) return {2 * at, 2 * at + kWide, at < rotation.half};
  if (at < rotation.half) return {at, at + rotation.half, true};
  return {at + rotation.half, at + head / 2, false};
}

// One block a token: heads go from `from` to `to`, q and k turned if rotation.half > 0, `heads` of each group
// (all, or those that are turned). kWide elements at a time: 8 where all lie on 16-byte boundaries. Not
// restrict: in place, a thread reads the elements that it writes before it writes them.
template <typename T, int kWide, bool kFromPacked, bool kToPacked, Turning kTurning>
__global__ void __launch_bounds__(kQkvThreads)
    QkvKernel(QkvParts from, QkvParts to, QkvShape shape, int heads, const std::int32_t* positions,
              const __grid_constant__ Rotation rotation) {
  constexpr bool kRotary = kTurning != Turning::kNone;
  __shared__ float2 turns[kRotary ? Rotation::kMaxHalf : 1];
  LetNextBegin();
  AwaitEarlier();
  const std::int64_t token = blockIdx.x;
  if constexpr (kRotary) {
    const double position = positions[token];
    for (int i = threadIdx.x; i < rotation.half; i += kQkvThreads) {
      // Whole turns drop out in f64; what is left is below half a turn, and exact to 3e-8 turns in fp32.
      const double turned = position * rotation.turns[i];
      float sin;
      float cos;
      sincospif(static_cast<float>(2 * (turned - rint(turned))), &sin, &cos);
      turns[i] = {cos, rotation.inverse ? -sin : sin};
      if constexpr (kTurning == Turning::kAny) {
        turns[i].x *= rotation.factor;
        turns[i].y *= rotation.factor;
      }
    }
    __syncthreads();
  }
  // Each head in units of kWide elements, or, if turned, kWide pairs of elements.
  const int span = kTurning == Turning::kNone     ? shape.head
                   : kTurning == Turning::kHalves ? rotation.half
                                                  : shape.head / 2;
  const int units = span / kWide;
  const int all_units = shape.groups * heads * units;
  struct Place {
    int group, j, at;
  };
  const auto place_of = [&](int unit) {
    const int head = unit / units;
    return Place{head / heads, head % heads, (unit - head * units) * kWide};
  };
  for (int first = threadIdx.x; first < all_units; first += kUnitsInFlight * kQkvThreads) {
    Columns<T, kWide> low[kUnitsInFlight];
    Columns<T, kWide> high[kUnitsInFlight];
#pragma unroll
    for (int i = 0; i < kUnitsInFlight; ++i) {
      const int unit = first + i * kQkvThreads;
      if (unit >= all_units) break;
      const Place place = place_of(unit);
      const T* source = HeadAt<T, kFromPacked>(from, shape, token, place.group, place.j);
      if constexpr (kRotary) {
        const PairPlace pairs = PairsFrom<kWide, kTurning>(rotation, shape.head, place.at);
        low[i] = LoadColumns<kWide>(source + pairs.low);
        high[i] = LoadColumns<kWide>(source + pairs.high);
      } else {
        low[i] = LoadColumns<kWide>(source + place.at);
      }
    }
#pragma unroll
    for (int i = 0; i < kUnitsInFlight; ++i) {
      const int unit = first + i * kQkvThreads;
      if (unit >= all_units) break;
      const Place place = place_of(unit);
      T* target = HeadAt<T, kToPacked>(to, shape, token, place.group, place.j);
      if constexpr (kRotary) {
        const PairPlace pairs = PairsFrom<kWide, kTurning>(rotation, shape.head, place.at);
        if (place.j < shape.turned && pairs.turned) {
          if (kTurning == Turning::kAny && rotation.interleaved) {
            TurnNeighbours(turns + place.at, low[i], high[i]);
          } else {
            Turn(turns + place.at, low[i], high[i]);
          }
        }
        StoreColumns(target + pairs.high, high[i]);
        StoreColumns(target + pairs.low, low[i]);
      } else {
        StoreColumns(target + place.at, low[i]);
      }
    }
  }
}

template <bool kFromPacked, bool kToPacked>
void LaunchQkv(const QkvParts& from, const QkvParts& to, const QkvShape& shape, int heads, DType dtype,
               const std::int32_t* positions, const Rotation& rotation, cudaStream_t stream) {
  WithElementType(dtype, [&](auto type) {
    using T = decltype(type);
    const auto launch = [&](auto kernel) {
      Launch(shape.tokens <= kMostEarlyRows, kernel, static_cast<unsigned>(shape.tokens), kQkvThreads, 0,
             stream, from, to, shape, heads, positions, rotation);
    };
    const bool whole = 2 * rotation.half == shape.head && !rotation.interleaved && rotation.factor == 1.0F;
    if (rotation.half > 0 && whole) {
      launch(rotation.half % 8 == 0 ? QkvKernel<T, 8, kFromPacked, kToPacked, Turning::kHalves>
                                    : QkvKernel<T, 1, kFromPacked, kToPacked, Turning::kHalves>);
    } else if (rotation.half > 0) {
      launch(rotation.half % 8 == 0 && shape.head % 16 == 0
                 ? QkvKernel<T, 8, kFromPacked, kToPacked, Turning::kAny>
                 : QkvKernel<T, 1, kFromPacked, kToPacked, Turning::kAny>);
    } else if constexpr (!(kFromPacked && kToPacked)) {
      launch(shape.head % 8 == 0 ? QkvKernel<T, 8, kFromPacked, kToPacked, Turning::kNone>
                                 : QkvKernel<T, 1, kFromPacked, kToPacked, Turning::kNone>);
    }
  });
}

unsigned Blocks(std::int64_t count, std::int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

template <int kWide, typename T, typename D>
void LaunchSums(const T* dy, std::int64_t tokens, const TableRows& rows, D* d_table, std::byte* scratch,
                const EmbeddingGradLayout& layout, cudaStream_t stream) {
  const auto* sorted_rows = reinterpret_cast<const std::uint32_t*>(scratch + layout.sorted_rows);
  const auto* sorted_tokens = reinterpret_cast<const std::uint32_t*>(scratch + layout.sorted_tokens);
  auto* partial = reinterpret_cast<float*>(scratch + layout.partial);
  const dim3 grid(Blocks(tokens, kEmbeddingPiece), Blocks(rows.columns, kSumThreads * kWide));
  SumPiecesKernel<T, D, kWide>
      <<<grid, kSumThreads, 0, stream>>>(sorted_rows, sorted_tokens, tokens, dy, rows.columns,
                                         static_cast<std::uint32_t>(rows.rows), d_table, partial);
  SumRunsKernel<D, kWide><<<grid, kSumThreads, 0, stream>>>(
      sorted_rows, tokens, rows.columns, static_cast<std::uint32_t>(rows.rows), d_table, partial);
}

}  // namespace

void Embedding(const std::int32_t* ids, std::int64_t tokens, const void* table, const TableRows& rows,
               DType dtype, void* y, cudaStream_t stream) {
  const std::int64_t row_bytes = rows.columns * SizeOf(dtype);
  const auto launch = [&](auto word) {
    using Word = decltype(word);
    EmbeddingKernel<<<Blocks(tokens, kThreads / kWarp), kThreads, 0, stream>>>(
        ids, tokens, static_cast<const Word*>(table), rows.first_row, rows.rows,
        static_cast<int>(row_bytes / static_cast<std::int64_t>(sizeof(Word))), static_cast<Word*>(y));
  };
  if (row_bytes % 16 == 0) {
    launch(uint4());
  } else if (row_bytes % 4 == 0) {
    launch(std::uint32_t());
  } else {
    launch(std::uint16_t());
  }
}

void EmbeddingGrad(const std::int32_t* ids, std::int64_t tokens, const void* dy, DType dtype,
                   const TableRows& rows, void* d_table, DType table_dtype, std::byte* scratch,
                   const EmbeddingGradLayout& layout, cudaStream_t stream) {
  auto* row_of = reinterpret_cast<std::uint32_t*>(scratch + layout.rows);
  auto* index = reinterpret_cast<std::uint32_t*>(scratch + layout.tokens);
  RowsOfTokensKernel<<<Blocks(tokens, kThreads), kThreads, 0, stream>>>(ids, tokens, rows.first_row,
                                                                        rows.rows, row_of, index);
  auto sort_bytes = static_cast<std::size_t>(layout.sort_bytes);
  Sort(scratch + layout.sort, &sort_bytes, row_of,
       reinterpret_cast<std::uint32_t*>(scratch + layout.sorted_rows), index,
       reinterpret_cast<std::uint32_t*>(scratch + layout.sorted_tokens), tokens, rows.rows, stream);
  const auto sum = [&](auto* table) {
    WithElementType(dtype, [&](auto type) {
      const auto* rows_of_dy = static_cast<const decltype(type)*>(dy);
      if (rows.columns % 8 == 0) {
        LaunchSums<8>(rows_of_dy, tokens, rows, table, scratch, layout, stream);
      } else {
        LaunchSums<1>(rows_of_dy, tokens, rows, table, scratch, layout, stream);
      }
    });
  };
  if (table_dtype == DType::kBF16) {
    sum(static_cast<__nv_bfloat16*>(d_table));
  } else {
    sum(static_cast<float*>(d_table));
  }
}

cudaError_t EmbeddingSortBytes(std::int64_t tokens, std::int64_t rows, std::int64_t* bytes) {
  std::size_t needed = 0;
  const cudaError_t error =
      Sort(nullptr, &needed, nullptr, nullptr, nullptr, nullptr, tokens, rows, /*stream=*/nullptr);
  *bytes = static_cast<std::int64_t>(needed);
  return error;
}

void QkvSplit(const void* packed, const QkvShape& shape, DType dtype, const std::int32_t* positions,
              const Rotation& rotation, const QkvParts& parts, cudaStream_t stream) {
  LaunchQkv<true, false>({.q = const_cast<void*>(packed)}, parts, shape, shape.per_group, dtype, positions,
                         rotation, stream);
}

void QkvMerge(const QkvParts& parts, const QkvShape& shape, DType dtype, const std::int32_t* positions,
              const Rotation& rotation, void* packed, cudaStream_t stream) {
  LaunchQkv<false, true>(parts, {.q = packed}, shape, shape.per_group, dtype, positions, rotation, stream);
}

void Rotary(void* packed, const QkvShape& shape, DType dtype, const std::int32_t* positions,
            const Rotation& rotation, cudaStream_t stream) {
  const QkvParts parts{.q = packed};
  LaunchQkv<true, true>(parts, parts, shape, shape.turned, dtype, positions, rotation, stream);
}

// As a packed projection whose groups have a single head.
void Rotate(const void* x, std::int64_t tokens, int heads, int head, DType dtype,
            const std::int32_t* positions, const Rotation& rotation, void* y, cudaStream_t stream) {
  const QkvShape shape{.tokens = tokens, .groups = heads, .per_group = 1, .head = head, .turned = 1};
  LaunchQkv<true, true>({.q = const_cast<void*>(x)}, {.q = y}, shape, 1, dtype, positions, rotation, stream);
}

}  // namespace engine::backend::cuda
