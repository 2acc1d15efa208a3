// Gated linear units (engine/ops/glu.cpp).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string_view>

#include "engine/base/dtype.h"

namespace engine::backend::cuda {

// kind: of the gate, one of graph::kGateKinds. `dtype` is that of every void pointer: f32, bf16, f16. R rows.

// x[R, 2, F] → y[R, F].
void LaunchGlu(DType dtype, std::string_view kind, std::int64_t rows, std::int64_t ffn, const void* x,
               void* y, cudaStream_t stream);
// x[R, 2, F], dy[R, F] → dx[R, 2, F], which may be x.
void LaunchGluGrad(DType dtype, std::string_view kind, std::int64_t rows, std::int64_t ffn, const void* x,
                   const void* dy, void* dx, cudaStream_t stream);

}  // namespace engine::backend::cuda
