// A linear map for each head, of few rows (ops/head_linear.cpp).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/base/dtype.h"

namespace engine::backend::cuda {

struct HeadLinear {
  DType dtype = DType::kBF16;  // f32, bf16 or f16; sums are fp32
  bool transposed = false;     // sums over N; else over C
  std::int64_t rows = 0, heads = 0;
  std::int64_t n = 0, c = 0;  // N, C
  // Elements of a head of x, and where those that are read begin.
  std::int64_t x_width = 0, first = 0;
  const void* x = nullptr;  // [rows, heads, x_width]
  const void* w = nullptr;  // [heads, N, C]
  void* y = nullptr;        // [rows, heads, transposed: C, else N]
};
void LaunchHeadLinear(const HeadLinear& linear, cudaStream_t stream);

}  // namespace engine::backend::cuda
