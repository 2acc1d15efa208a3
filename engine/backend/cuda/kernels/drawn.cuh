// Numbers drawn for the elements of a tensor, on the device.
#pragma once

#include "engine/backend/cuda/kernels/drawn.h"
#include "engine/backend/cuda/kernels/elementwise.cuh"
#include "engine/base/dropout_draws.h"

namespace engine::backend::cuda {

// Logical index of the first element of local row `row` (all dims but the last), as if the last dim began at
// 0.
__device__ __forceinline__ std::int64_t LogicalRow(const Drawn& drawn, std::int64_t row) {
  const LogicalDims& index = drawn.index;
  std::int64_t stride = index.dims[index.rank - 1].logical;
  if (drawn.rows_follow) return (drawn.first_sample * drawn.rows_of_sample + drawn.first_row + row) * stride;
  std::int64_t start = 0;
#pragma unroll
  for (int i = LogicalDims::kMaxDims - 2; i >= 0; --i) {
    if (i > index.rank - 2) continue;
    std::int64_t local;
    row = Divide(row, index.dims[i].local, &local);
    const std::int64_t at = LogicalIndex(index.dims[i], local);
    start += (i == 0 ? drawn.first_sample + at : at) * stride;
    stride *= index.dims[i].logical;
  }
  return start;
}

__device__ __forceinline__ std::uint64_t IterationOf(const Drawn& drawn) {
  return static_cast<std::uint64_t>(*drawn.iteration);
}

// x is element `index` of the whole tensor.
__device__ __forceinline__ float Dropped(const DropoutMask& mask, std::uint64_t iteration,
                                         std::uint64_t index, float x) {
  // Chosen by comparisons, as an index would put the words in local memory.
  const auto words = DropoutDraws8(mask.drawn.key, iteration, index / 8);
  const std::uint32_t low = index / 2 % 2 == 0 ? words[0] : words[1];
  const std::uint32_t high = index / 2 % 2 == 0 ? words[2] : words[3];
  const std::uint32_t word = index / 4 % 2 == 0 ? low : high;
  const std::uint32_t draw = index % 2 == 0 ? word & 0xFFFFU : word >> 16;
  return draw >= mask.below ? x * mask.scale : 0.0F;
}

// x are elements 8·eight to 8·eight + 7.
__device__ __forceinline__ void DropEight(const DropoutMask& mask, std::uint64_t iteration,
                                          std::uint64_t eight, float (&x)[8]) {
  const auto words = DropoutDraws8(mask.drawn.key, iteration, eight);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    x[2 * k] = (words[k] & 0xFFFFU) >= mask.below ? x[2 * k] * mask.scale : 0.0F;
    x[2 * k + 1] = words[k] >= mask.below << 16 ? x[2 * k + 1] * mask.scale : 0.0F;
  }
}

}  // namespace engine::backend::cuda
