// Numbers drawn for the elements of a tensor, as kernels take them.
#pragma once

#include <cstdint>

#include "engine/backend/cuda/kernels/logical_dims.h"
#include "engine/base/philox.h"

namespace engine::backend::cuda {

struct Drawn {
  LogicalDims index;
  // The rows here (all dims but the last) are one behind the other in the whole tensor as well: row r of them is row
  // first_sample · rows_of_sample + first_row + r. Where they are not, each row is looked up in `index`.
  bool rows_follow = false;
  std::int64_t rows_of_sample = 0;
  std::int64_t first_row = 0;
  PhiloxKey key;
  std::int64_t first_sample = 0;      // of the microbatch in the global batch
  const double* iteration = nullptr;  // in the device's memory
};

// Whether the last dim is here as a whole, so that the elements of a row follow one another in the whole tensor too.
inline bool HasWholeRows(const LogicalDims& index) {
  const LogicalDims::Dim& columns = index.dims[index.rank - 1];
  return columns.pieces == 1 && columns.piece[0].start == 0 && columns.piece[0].length == columns.local &&
         columns.local == columns.logical;
}

// Dropout (base/dropout_draws.h).
struct DropoutMask {
  Drawn drawn;
  std::uint32_t below = 0;  // smaller draws are dropped; 0: there is no dropout
  float scale = 1;          // of what is kept
};

}  // namespace engine::backend::cuda
