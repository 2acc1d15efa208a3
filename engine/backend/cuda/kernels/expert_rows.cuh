// What kernels on the rows of experts share.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "engine/graph/rows.h"

namespace engine::backend::cuda {

// What a row is.
enum class RowKind {
  kChosen,  // a token's
  kZero,    // fills up its group's last kRowAlignment rows: zeros
  kBehind,  // behind the last group: not touched
};

// A group begins at a multiple of kRowAlignment and has its rows first, so that a block whose first row is nobody's lies
// behind the last group.
__device__ __forceinline__ RowKind KindOfRow(const std::int32_t* choice_of, std::int64_t row) {
  if (choice_of[row] >= 0) return RowKind::kChosen;
  return choice_of[row / graph::kRowAlignment * graph::kRowAlignment] >= 0 ? RowKind::kZero
                                                                           : RowKind::kBehind;
}

// Where the rows of all groups end, with those that fill up the last one. last_group: its first row and number of rows.
__device__ __forceinline__ std::int64_t EndOfRows(const std::int32_t* last_group) {
  const std::int64_t end = std::int64_t{__ldg(last_group)} + __ldg(last_group + 1);
  return (end + graph::kRowAlignment - 1) / graph::kRowAlignment * graph::kRowAlignment;
}

}  // namespace engine::backend::cuda
