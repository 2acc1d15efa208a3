// A block a tile of 64 × 64 of one expert's result, in steps of 16 along what is summed; a thread has 4 × 4 of it. What
// carries out the sizes, element types and GPUs that grouped_sm90a.cuh does not.
#pragma once

#include <cuda_fp8.h>

#include "engine/backend/cuda/kernels/grouped.h"
#include "engine/backend/cuda/kernels/vector.cuh"
#include "engine/graph/rows.h"

namespace engine::backend::cuda::grouped_portable {

// Those of vector.cuh, and of FP8.
using cuda::ToFloat;
__device__ __forceinline__ float ToFloat(__nv_fp8_e4m3 x) { return static_cast<float>(x); }
__device__ __forceinline__ float ToFloat(__nv_fp8_e5m2 x) { return static_cast<float>(x); }

inline constexpr int kTile = 64;
inline constexpr int kStep = 16;
inline constexpr int kThreads = 256;
inline constexpr int kEach = 4;  // of a thread, along m and along n
inline constexpr int kSide = kTile / kEach;
static_assert(kSide * kSide == kThreads);
static_assert(graph::kRowAlignment % kTile == 0);  // so that a tile of rows is of one group

// Element (i, k) stands at i·of_i + k·of_k; zero from i = `is` and k = `ks` on.
template <typename T>
struct Operand {
  const T* data = nullptr;
  std::int64_t of_i = 0, of_k = 0;
  std::int64_t is = 0, ks = 0;
};

// tile[k][i] of elements (first_i + i, first_k + k); neighbouring threads read neighbouring elements.
template <typename T>
__device__ void LoadTile(const Operand<T>& from, std::int64_t first_i, std::int64_t first_k,
                         float (&tile)[kStep][kTile + 1]) {
  for (int at = static_cast<int>(threadIdx.x); at < kTile * kStep; at += kThreads) {
    const int i = from.of_k == 1 ? at / kStep : at % kTile;
    const int k = from.of_k == 1 ? at % kStep : at / kTile;
    const std::int64_t row = first_i + i;
    const std::int64_t column = first_k + k;
    const bool there = row < from.is && column < from.ks;
    tile[k][i] = there ? ToFloat(from.data[row * from.of_i + column * from.of_k]) : 0.0F;
  }
}

// sums[i][j]: element (m + threadIdx.x / 16 + 16·i, n + threadIdx.x % 16 + 16·j) of a · bᵀ.
template <typename A, typename B>
__device__ void SumTile(const Operand<A>& a, const Operand<B>& b, std::int64_t m, std::int64_t n,
                        float (&sums)[kEach][kEach]) {
  __shared__ float a_tile[kStep][kTile + 1];
  __shared__ float b_tile[kStep][kTile + 1];
  const int row = static_cast<int>(threadIdx.x) / kSide;
  const int column = static_cast<int>(threadIdx.x) % kSide;
  for (std::int64_t k = 0; k < a.ks; k += kStep) {
    LoadTile(a, m, k, a_tile);
    LoadTile(b, n, k, b_tile);
    __syncthreads();
#pragma unroll
    for (int step = 0; step < kStep; ++step) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
#pragma unroll
        for (int j = 0; j < kEach; ++j)
          sums[i][j] = fmaf(a_tile[step][row + kSide * i], b_tile[step][column + kSide * j], sums[i][j]);
      }
    }
    __syncthreads();
  }
}

// d[rows, columns], packed.
template <typename Result>
__device__ void StoreTile(const float (&sums)[kEach][kEach], std::int64_t m, std::int64_t n,
                          std::int64_t rows, std::int64_t columns, bool accumulate, Result* d) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const std::int64_t row = m + static_cast<int>(threadIdx.x) / kSide + kSide * i;
      const std::int64_t column = n + static_cast<int>(threadIdx.x) % kSide + kSide * j;
      if (row >= rows || column >= columns) continue;
      Result& element = d[row * columns + column];
      element = FromFloat<Result>(accumulate ? ToFloat(element) + sums[i][j] : sums[i][j]);
    }
  }
}

__device__ __forceinline__ std::int64_t WithFilling(std::int64_t rows) {
  return (rows + graph::kRowAlignment - 1) / graph::kRowAlignment * graph::kRowAlignment;
}

// The expert in whose group, with what fills it up, the row lies; −1: it is in none. For all threads of the block.
__device__ __forceinline__ std::int64_t ExpertOf(const GroupedProduct& p, std::int64_t row) {
  __shared__ std::int64_t found;
  if (threadIdx.x == 0) found = -1;
  __syncthreads();
  for (std::int64_t e = threadIdx.x; e < p.experts; e += kThreads) {
    const std::int64_t first = p.groups[2 * e];
    if (row >= first && row < first + WithFilling(p.groups[2 * e + 1])) found = e;
  }
  __syncthreads();
  return found;
}

inline unsigned Blocks(std::int64_t size, int each) {
  return static_cast<unsigned>((size + each - 1) / each);
}

// Products of FP8 (grouped_fp8.cu).
void LaunchFp8(const GroupedProduct& product, cudaStream_t stream);

}  // namespace engine::backend::cuda::grouped_portable
