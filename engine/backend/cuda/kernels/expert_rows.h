// Tokens to the rows of experts and back (engine/ops/expert_rows.cpp; graph/rows.h). N = T tokens · k choices, R rows. How
// many rows there are is known on the device alone: all launches depend on the bounds only, and rows behind those of the
// last expert are neither read nor written.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/base/dtype.h"

namespace engine::backend::cuda {

// Experts [first, first + count) are here.
struct ExpertsHere {
  std::int64_t first = 0;
  std::int64_t count = 0;  // at most kMostExperts (route.h)
};

// Where the tokens' rows lie, as place gives it.
struct RowPlaces {
  const std::int32_t* choice_of = nullptr;  // [R]; −1: none
  const std::int32_t* row_of = nullptr;     // [T, k]; −1: of an expert that is not here
  std::int64_t rows = 0;                    // R, a multiple of kRowAlignment
  std::int64_t tokens = 0;
  int k = 0;
  // Of a window of rows (graph/windows.h): choice_of and rows are its own, row_of counts from row 0 of all.
  std::int32_t first = 0;  // row of all that is the window's first one
  const std::int32_t* last_group =
      nullptr;  // of all rows: first row and number of rows; null: this is no window
};

// count f32 [samples, experts here] of choice [samples, choices].
void LaunchTally(const std::int32_t* choice, std::int64_t samples, std::int64_t choices,
                 const ExpertsHere& experts, float* count, cudaStream_t stream);

// choice [N] → choice_of [R], row_of [N], groups [experts here, 2], by a stable sort. scratch: i32 [experts here, chunks of
// kPlaceChunk choices].
void LaunchPlace(const std::int32_t* choice, std::int64_t choices, const ExpertsHere& experts,
                 std::int32_t* scratch, std::int64_t rows, std::int32_t* choice_of, std::int32_t* row_of,
                 std::int32_t* groups, cudaStream_t stream);

// groups[E, 2] of all rows → out[windows, E, 2]: those of each window of `rows` rows, counted from its first one.
void LaunchWindowGroups(const std::int32_t* groups, std::int64_t experts, std::int64_t rows,
                        std::int64_t windows, std::int32_t* out, cudaStream_t stream);

// *sum (+)= how many rows of the groups [E, 2] are not among the first `rows`.
void LaunchExtraRows(const std::int32_t* groups, std::int64_t experts, std::int64_t rows, bool accumulate,
                     double* sum, cudaStream_t stream);

// out[R, row_bytes], the rows of x[T, row_bytes], zeros in those that fill up a group. row_bytes: a multiple of 2.
void LaunchSpread(const RowPlaces& places, std::int64_t row_bytes, const void* x, void* out,
                  cudaStream_t stream);

// y[T, columns] = Σ over a token's choices, in their order, of rows[row, columns], in fp32, rounded once. Of a window that is not
// the first: added to y, where a token has rows in it.
void LaunchCombine(const RowPlaces& places, DType dtype, std::int64_t columns, const void* rows, void* y,
                   cudaStream_t stream);

}  // namespace engine::backend::cuda
