// Products with few terms, as an adapter's second one, added to what there is: memory sets their time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/base/dtype.h"

namespace engine::backend::cuda {

// Whether y = c + a · op(w) of these sizes is one for LaunchNarrowProduct: bf16 or fp16, 16, 32, 48 or 64 terms, rows of y
// in whole vectors of 16 bytes.
constexpr bool IsNarrowProduct(DType dtype, std::int64_t columns, std::int64_t terms) {
  return (dtype == DType::kBF16 || dtype == DType::kF16) && columns % 8 == 0 && terms % 16 == 0 &&
         terms > 0 && terms <= 64;
}

struct NarrowProduct {
  DType dtype = DType::kBF16;  // of all tensors; sums are made in fp32, in an order that the sizes set
  std::int64_t rows = 0, columns = 0, terms = 0;
  // w is [columns, terms]; else [terms, columns].
  bool transposed = true;
  const void* a = nullptr;  // [rows, terms]
  const void* w = nullptr;
  const void* c = nullptr;  // [rows, columns], on a 16-byte boundary, as y
  void* y = nullptr;        // likewise; may be c
};

// y = c + a · op(w), rounded once.
void LaunchNarrowProduct(const NarrowProduct& product, cudaStream_t stream);

}  // namespace engine::backend::cuda
