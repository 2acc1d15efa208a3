// The second phase of sums over rows (column_sums.h).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "engine/backend/cuda/profile/column_sums.h"

namespace engine::backend::cuda {

inline constexpr int kMaxColumnSums = 3;

struct ColumnSums {
  const float* partial;  // [lines, sums, columns]
  std::int64_t lines;
  int sums;
  std::int64_t columns;
  float* totals[kMaxColumnSums];  // each [columns]
  std::uint32_t accumulate;       // bit i: totals[i] += instead of =
};

inline constexpr int kLineThreads = 16;

// A block adds 32 columns, sixteen threads to a column: thread i takes lines i, i + 16, …
static __global__ void __launch_bounds__(32 * kLineThreads) AddLinesKernel(ColumnSums sums) {
  __shared__ float shared[kLineThreads][32];
  const std::int64_t width = sums.sums * sums.columns;
  const std::int64_t at = std::int64_t{blockIdx.x} * 32 + threadIdx.x;
  float total = 0;
  if (at < width) {
#pragma unroll 8
    for (std::int64_t line = threadIdx.y; line < sums.lines; line += kLineThreads) {
      total += sums.partial[line * width + at];
    }
  }
  shared[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y != 0 || at >= width) return;
#pragma unroll
  for (int i = 1; i < kLineThreads; ++i) total += shared[i][threadIdx.x];
  const int sum = static_cast<int>(at / sums.columns);
  float* to = sums.totals[0];
#pragma unroll
  for (int i = 1; i < kMaxColumnSums; ++i) to = sum == i ? sums.totals[i] : to;
  to += at % sums.columns;
  *to = (sums.accumulate >> sum & 1U) != 0 ? *to + total : total;
}

inline void AddLines(const ColumnSums& sums, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(CeilDivide(sums.sums * sums.columns, 32));
  AddLinesKernel<<<blocks, dim3(32, kLineThreads), 0, stream>>>(sums);
}

}  // namespace engine::backend::cuda
