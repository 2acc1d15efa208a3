// Rows times a factor each, and the products of rows (engine/ops/scale_rows.cpp).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/base/dtype.h"

namespace engine::backend::cuda {

// `dtype` is that of every void pointer: f32, bf16, f16. Sums are made in f32.

// y[r, c] = s[r] · x[r, c]; x and y [rows, columns]. y may be x.
void LaunchScaleRows(DType dtype, std::int64_t rows, std::int64_t columns, const void* x, const void* s,
                     void* y, cudaStream_t stream);
// y[r] = Σ_c a[r, c] · b[r, c]; a and b [rows, columns].
void LaunchRowDot(DType dtype, std::int64_t rows, std::int64_t columns, const void* a, const void* b, void* y,
                  cudaStream_t stream);

}  // namespace engine::backend::cuda
