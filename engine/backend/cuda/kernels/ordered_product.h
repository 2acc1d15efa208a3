// Products whose elements are sums in one order, however many rows there are: what a row of y is does not depend on the others.
//
// The order is that of a tensor core's accumulator: terms 0 to 15 are added to it at once, then 16 to 31, and so on. On Hopper
// each of cuBLASLt's algorithms that does not split the terms adds up in it too, whether by wgmma or mma, so that these carry
// out the long products (gemm/gemm_tuner.h tries that they do, bit for bit), and this kernel the short ones.
#pragma once

#include <cuda_runtime_api.h>

#include "engine/backend/cuda/kernels/few_rows.h"

namespace engine::backend::cuda {

// Of any number of rows; before_gelu must be null. Memory sets its time for up to 16 rows; of more it reads w again for each
// 16 of them.
void LaunchOrderedProduct(const FewRows& product, cudaStream_t stream);

// Adds to *count how many numbers of 16 bits of a and b are unequal.
void CountUnequal(const void* a, const void* b, std::int64_t bytes, std::uint32_t* count,
                  cudaStream_t stream);

// Whether there is the kernel for a product of these types and so many terms.
constexpr bool HasOrderedProduct(DType dtype, DType made, std::int64_t terms) {
  return IsFewRows(dtype, made, /*rows=*/1, terms);
}

}  // namespace engine::backend::cuda
