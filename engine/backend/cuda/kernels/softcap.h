// Soft caps (engine/ops/softcap.cpp).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/base/dtype.h"

namespace engine::backend::cuda {

// `dtype` is that of every void pointer: f32, bf16, f16. An output may be an input.

// y = cap · tanh(x / cap), of `elements` each.
void LaunchSoftcap(DType dtype, float cap, std::int64_t elements, const void* x, void* y,
                   cudaStream_t stream);
// dx = dy · (1 − (y / cap)²).
void LaunchSoftcapGrad(DType dtype, float cap, std::int64_t elements, const void* y, const void* dy, void* dx,
                       cudaStream_t stream);

}  // namespace engine::backend::cuda
