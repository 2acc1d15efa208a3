// A tensor times a number (engine/ops/scale.cpp).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/base/dtype.h"

namespace engine::backend::cuda {

// y = by · x, of `elements` each. `dtype` is that of every void pointer: f32, bf16, f16. y may be x.
void LaunchScale(DType dtype, float by, std::int64_t elements, const void* x, void* y, cudaStream_t stream);

}  // namespace engine::backend::cuda
