// A warp makes 128 columns of some rows. The tensor cores' tiles of 16 rows and 8 columns give a thread two neighbouring
// columns; tile j of four takes columns 8t + 2j and 8t + 2j + 1 for the threads that are t-th of their row, so that a thread
// has eight columns one behind the other, one access of 16 bytes.
#include "engine/backend/cuda/kernels/narrow_product.h"

#include <algorithm>

#include "engine/backend/cuda/kernels/mma.cuh"
#include "engine/backend/cuda/kernels/vector.cuh"
#include "engine/base/units.h"

namespace engine::backend::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kTileRows = 16;
constexpr int kGroup = 32;  // columns of four tiles
constexpr int kGroups = 4;  // of a warp: rows of 256 bytes; with 64 the kernel takes 2.5 times as long
constexpr int kColumns = kGroup * kGroups;
// At most so many blocks, four for each multiprocessor of an H200, where rows and columns allow it: each reads its part of w
// once. One has so many rows at least.
constexpr std::int64_t kBlocks = 528;
constexpr std::int64_t kLeastRows = 64;

// Two neighbouring terms of a column of op(w) as a word.
template <typename T, bool kTransposed>
__device__ __forceinline__ std::uint32_t Terms(const T* w, std::int64_t column, int term,
                                               std::int64_t columns, int terms) {
  if (column >= columns) return 0;
  if constexpr (kTransposed) {
    return *reinterpret_cast<const std::uint32_t*>(w + column * terms + term);
  } else {
    const std::uint32_t low = *reinterpret_cast<const std::uint16_t*>(w + term * columns + column);
    const std::uint32_t high = *reinterpret_cast<const std::uint16_t*>(w + (term + 1) * columns + column);
    return low | (high << 16);
  }
}

// A thread's share of 16 rows. kSteps: terms / 16.
template <typename T, int kSteps>
struct Tile {
  Pack8<T> sums[2][kGroups];       // of rows row_of and row_of + 8
  std::uint32_t terms[kSteps][4];  // of a

  __device__ __forceinline__ void Read(const T* a, const T* c, std::int64_t first_row, std::int64_t rows,
                                       std::int64_t first_column, std::int64_t columns, int in_row,
                                       int row_of) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int64_t row = first_row + 8 * half + row_of;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const std::int64_t column = first_column + group * kGroup + 8 * in_row;
        sums[half][group] =
            row < rows && column < columns ? LoadPack8(c + row * columns + column) : Pack8<T>();
      }
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const T* const at = a + row * (16 * kSteps) + 16 * step + 2 * in_row;
        terms[step][half] = row < rows ? *reinterpret_cast<const std::uint32_t*>(at) : 0;
        terms[step][half + 2] = row < rows ? *reinterpret_cast<const std::uint32_t*>(at + 8) : 0;
      }
    }
  }
};

template <typename T, bool kTransposed, int kSteps>
__global__ void __launch_bounds__(kWarps* kWarp, 1)
    NarrowProductKernel(std::int64_t rows, std::int64_t rows_each, std::int64_t columns,
                        const T* __restrict__ a, const T* __restrict__ w, const T* c, T* y) {
  constexpr int kTerms = 16 * kSteps;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int in_row = lane % 4;  // of the threads that have a row, and of the pairs of terms
  const int row_of = lane / 4;  // of a tile; also its column of op(w)
  const std::int64_t first_column = (static_cast<std::int64_t>(blockIdx.x) * kWarps + warp) * kColumns;
  if (first_column >= columns) return;
  std::uint32_t b[kSteps][kGroups][4][2];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int tile = 0; tile < 4; ++tile) {
        const std::int64_t column = first_column + group * kGroup + 8 * (row_of / 2) + 2 * tile + row_of % 2;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          b[step][group][tile][half] =
              Terms<T, kTransposed>(w, column, 16 * step + 8 * half + 2 * in_row, columns, kTerms);
        }
      }
    }
  }
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * rows_each;
  const std::int64_t end_row = first_row + rows_each < rows ? first_row + rows_each : rows;
  // Each turn reads the next 16 rows before it writes its own. That is safe where c is y, as a row belongs to one tile alone.
  Tile<T, kSteps> now, next;
  now.Read(a, c, first_row, rows, first_column, columns, in_row, row_of);
  for (std::int64_t row = first_row; row < end_row; row += kTileRows) {
    if (row + kTileRows < end_row)
      next.Read(a, c, row + kTileRows, rows, first_column, columns, in_row, row_of);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      float x[2][8];
      Unpack8(now.sums[0][group], x[0]);
      Unpack8(now.sums[1][group], x[1]);
#pragma unroll
      for (int tile = 0; tile < 4; ++tile) {
        float d[4] = {x[0][2 * tile], x[0][2 * tile + 1], x[1][2 * tile], x[1][2 * tile + 1]};
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          const auto& terms = b[step][group][tile];
          MultiplyTile(T(), d, now.terms[step], terms[0], terms[1]);
        }
        x[0][2 * tile] = d[0], x[0][2 * tile + 1] = d[1];
        x[1][2 * tile] = d[2], x[1][2 * tile + 1] = d[3];
      }
      const std::int64_t column = first_column + group * kGroup + 8 * in_row;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::int64_t at = row + 8 * half + row_of;
        if (at < rows && column < columns) StorePack8(y + at * columns + column, ToPack8<T>(x[half]));
      }
    }
    now = next;
  }
}

template <typename T, bool kTransposed, int kSteps>
void Launch(const NarrowProduct& p, cudaStream_t stream) {
  const std::int64_t strips = CeilDiv(p.columns, std::int64_t{kColumns} * kWarps);
  const std::int64_t parts = std::max(kBlocks / strips, std::int64_t{1});
  const std::int64_t rows_each =
      RoundUp(std::max(kLeastRows, CeilDiv(p.rows, parts)), std::int64_t{kTileRows});
  const dim3 grid(static_cast<unsigned>(strips), static_cast<unsigned>(CeilDiv(p.rows, rows_each)));
  NarrowProductKernel<T, kTransposed, kSteps><<<grid, kWarps * kWarp, 0, stream>>>(
      p.rows, rows_each, p.columns, static_cast<const T*>(p.a), static_cast<const T*>(p.w),
      static_cast<const T*>(p.c), static_cast<T*>(p.y));
}

template <typename T, bool kTransposed>
void LaunchSteps(const NarrowProduct& p, cudaStream_t stream) {
  switch (p.terms / 16) {
    case 1:
      return Launch<T, kTransposed, 1>(p, stream);
    case 2:
      return Launch<T, kTransposed, 2>(p, stream);
    case 3:
      return Launch<T, kTransposed, 3>(p, stream);
    default:
      return Launch<T, kTransposed, 4>(p, stream);
  }
}

template <typename T>
void LaunchOf(const NarrowProduct& p, cudaStream_t stream) {
  return p.transposed ? LaunchSteps<T, true>(p, stream) : LaunchSteps<T, false>(p, stream);
}

}  // namespace

void LaunchNarrowProduct(const NarrowProduct& product, cudaStream_t stream) {
  return product.dtype == DType::kF16 ? LaunchOf<__half>(product, stream)
                                      : LaunchOf<__nv_bfloat16>(product, stream);
}

}  // namespace engine::backend::cuda
