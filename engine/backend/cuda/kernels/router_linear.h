// Around the products of a router's linear layer in 16 bits, whose gradient dy is fp32 (launch/router_linear.cpp).
// M tokens, O experts, I features.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/base/dtype.h"

namespace engine::backend::cuda {

// dy f32 [M, O] → parts [M, 2, O] of `dtype`, kBF16 or kF16: dy rounded, and what the rounding left, rounded. Their sum is dy
// but for the square of the dtype's rounding error.
void CutInTwo(const float* dy, std::int64_t m, std::int64_t out, DType dtype, void* parts,
              cudaStream_t stream);

// dw[elements] (+)= parts[0, elements] + parts[1, elements], rounded once to `dtype`, kF32 or kBF16. parts f32.
void AddTwo(const float* parts, std::int64_t elements, bool accumulate, DType dtype, void* dw,
            cudaStream_t stream);

}  // namespace engine::backend::cuda
