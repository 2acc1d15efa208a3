// Activations by their kind (engine/ops/activation.cpp).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string_view>

#include "engine/base/dtype.h"

namespace engine::backend::cuda {

// kind: one of graph::kActivationKinds. `dtype` is that of every void pointer: f32, bf16, f16. An output may be an input
// of its shape.

// y = act(x), of `elements` each.
void LaunchActivation(DType dtype, std::string_view kind, std::int64_t elements, const void* x, void* y,
                      cudaStream_t stream);
// dx = dy · act'(x).
void LaunchActivationGrad(DType dtype, std::string_view kind, std::int64_t elements, const void* x,
                          const void* dy, void* dx, cudaStream_t stream);

}  // namespace engine::backend::cuda
