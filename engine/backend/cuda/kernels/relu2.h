// Squared ReLU (engine/ops/relu2.cpp).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/base/dtype.h"

namespace engine::backend::cuda {

// `dtype` is that of every void pointer: f32, bf16, f16. An output may be an input of its shape.

// y = max(x, 0)², of `elements` each.
void LaunchRelu2(DType dtype, std::int64_t elements, const void* x, void* y, cudaStream_t stream);
// dx = 2 · max(x, 0) · dy.
void LaunchRelu2Grad(DType dtype, std::int64_t elements, const void* x, const void* dy, void* dx,
                     cudaStream_t stream);

}  // namespace engine::backend::cuda
