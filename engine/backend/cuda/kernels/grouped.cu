// A block a tile of 64 × 64 of one expert's result, in steps of 16 along what is summed; a thread has 4 × 4 of it. What
// carries out the sizes, element types and GPUs that grouped_sm90a.cu does not.
#include "engine/backend/cuda/kernels/grouped.h"

#include "engine/backend/cuda/kernels/vector.cuh"
#include "engine/graph/rows.h"

namespace engine::backend::cuda {
namespace {

constexpr int kTile = 64;
constexpr int kStep = 16;
constexpr int kThreads = 256;
constexpr int kEach = 4;  // of a thread, along m and along n
constexpr int kSide = kTile / kEach;
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
template <typename T>
__device__ void SumTile(const Operand<T>& a, const Operand<T>& b, std::int64_t m, std::int64_t n,
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

__device__ std::int64_t WithFilling(std::int64_t rows) {
  return (rows + graph::kRowAlignment - 1) / graph::kRowAlignment * graph::kRowAlignment;
}

// The expert in whose group, with what fills it up, the row lies; −1: it is in none. For all threads of the block.
__device__ std::int64_t ExpertOf(const GroupedProduct& p, std::int64_t row) {
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

// kForward, kDgrad. Block (rows, columns).
template <typename T>
__global__ void __launch_bounds__(kThreads) RowsKernel(GroupedProduct p) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kTile;
  const std::int64_t n = std::int64_t{blockIdx.y} * kTile;
  const std::int64_t expert = ExpertOf(p, row);
  if (expert < 0) return;
  const bool forward = p.kind == GroupedKind::kForward;
  const std::int64_t k = forward ? p.in : p.out;
  const std::int64_t columns = p.n();
  const std::int64_t first = p.groups[2 * expert];
  const std::int64_t rows = p.groups[2 * expert + 1];
  const Operand<T> a = {static_cast<const T*>(p.a) + first * k, k, 1, rows, k};
  const T* w = static_cast<const T*>(p.b) + expert * p.out * p.in;
  const Operand<T> b = {w, forward ? k : 1, forward ? 1 : columns, columns, k};
  float sums[kEach][kEach] = {};
  SumTile(a, b, row - first, n, sums);
  StoreTile(sums, row - first, n, WithFilling(rows), columns, false, static_cast<T*>(p.d) + first * columns);
}

// kWgrad. Block (columns, rows of dw, expert).
template <typename T, typename Result>
__global__ void __launch_bounds__(kThreads) WeightsKernel(GroupedProduct p) {
  const std::int64_t n = std::int64_t{blockIdx.x} * kTile;
  const std::int64_t m = std::int64_t{blockIdx.y} * kTile;
  const std::int64_t expert = blockIdx.z;
  const std::int64_t first = p.groups[2 * expert];
  const std::int64_t rows = p.groups[2 * expert + 1];
  const Operand<T> a = {static_cast<const T*>(p.a) + first * p.out, 1, p.out, p.out, rows};
  const Operand<T> b = {static_cast<const T*>(p.b) + first * p.in, 1, p.in, p.in, rows};
  float sums[kEach][kEach] = {};
  SumTile(a, b, m, n, sums);
  StoreTile(sums, m, n, p.out, p.in, p.accumulate, static_cast<Result*>(p.d) + expert * p.out * p.in);
}

// A thread an expert: its place is the number of experts that come before it.
__global__ void __launch_bounds__(kThreads)
    OrderKernel(const std::int32_t* groups, int experts, std::int32_t* order) {
  __shared__ std::int32_t others[kThreads];
  const int expert = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const std::int32_t rows = expert < experts ? groups[2 * expert + 1] : 0;
  int place = 0;
  for (int from = 0; from < experts; from += kThreads) {
    const int other = from + static_cast<int>(threadIdx.x);
    __syncthreads();
    others[threadIdx.x] = other < experts ? groups[2 * other + 1] : 0;
    __syncthreads();
    for (int i = 0; i < min(kThreads, experts - from); ++i)
      place += others[i] > rows || (others[i] == rows && from + i < expert) ? 1 : 0;
  }
  if (expert < experts) order[place] = expert;
}

unsigned Blocks(std::int64_t size, int each) { return static_cast<unsigned>((size + each - 1) / each); }

template <typename T>
void LaunchPortable(const GroupedProduct& p, cudaStream_t stream) {
  if (p.kind != GroupedKind::kWgrad) {
    RowsKernel<T><<<dim3(Blocks(p.rows, kTile), Blocks(p.n(), kTile)), kThreads, 0, stream>>>(p);
    return;
  }
  const dim3 grid(Blocks(p.in, kTile), Blocks(p.out, kTile), static_cast<unsigned>(p.experts));
  if (p.result == DType::kF32) {
    WeightsKernel<T, float><<<grid, kThreads, 0, stream>>>(p);
  } else {
    WeightsKernel<T, T><<<grid, kThreads, 0, stream>>>(p);
  }
}

}  // namespace

void GroupedLinearPortable(const GroupedProduct& product, cudaStream_t stream) {
  if (product.rows == 0 && product.kind != GroupedKind::kWgrad) return;
  WithElementType(product.operands,
                  [&](auto element) { LaunchPortable<decltype(element)>(product, stream); });
}

void OrderGroups(const std::int32_t* groups, std::int64_t experts, std::int32_t* order, cudaStream_t stream) {
  OrderKernel<<<Blocks(experts, kThreads), kThreads, 0, stream>>>(groups, static_cast<int>(experts), order);
}

}  // namespace engine::backend::cuda
