// Where a local row lies in the whole tensor, for kernels that draw by logical index.
#pragma once

#include <cstdint>

#include "engine/backend/kernel.h"

namespace engine::backend::cpu {

// Logical index of the first element of local row `row` (all dims but the last), as if the last dim began at
// 0. Dim 0 counts samples of the global batch, from `first_sample` on.
inline std::int64_t LogicalRow(const TensorView& x, std::int64_t row, std::int64_t first_sample) {
  std::int64_t index = 0;
  std::int64_t stride = x.logical[x.logical.rank() - 1];
  for (int dim = x.shape.rank() - 2; dim >= 0; --dim) {
    const std::int64_t at = LogicalIndex(x.extent.dims[dim], row % x.shape[dim]);
    row /= x.shape[dim];
    index += (dim == 0 ? first_sample + at : at) * stride;
    stride *= x.logical[dim];
  }
  return index;
}

}  // namespace engine::backend::cpu
