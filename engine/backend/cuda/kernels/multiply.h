// Products of elements (engine/ops/multiply.cpp).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/base/dtype.h"

namespace engine::backend::cuda {

// y = a · b, of `elements` each. `dtype` is that of every void pointer: f32, bf16, f16. y may be a or b.
void LaunchMultiply(DType dtype, std::int64_t elements, const void* a, const void* b, void* y,
                    cudaStream_t stream);

}  // namespace engine::backend::cuda
