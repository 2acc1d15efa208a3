// The largest of logits (ops/top_logits.cpp).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "engine/base/dtype.h"

namespace engine::backend::cuda {

struct TopLogits {
  DType dtype = DType::kBF16;          // f32, bf16 or f16
  std::int64_t samples = 0, rows = 0;  // tokens of a sample, of which the last is looked at
  std::int64_t columns = 0;            // of a row
  std::int64_t classes = 0;            // the first of them, which count
  std::int64_t first_class = 0;        // the logical id of the first
  std::int64_t count = 0;              // 1 … kMostTopLogits
  const void* logits = nullptr;
  const float* temperatures = nullptr;  // [samples]
  std::int32_t* tokens = nullptr;       // [samples, count]
  float* values = nullptr;              // likewise
  float* log_sums = nullptr;            // [samples, 2]
  std::byte* scratch = nullptr;         // profile/scratch_top_logits.h
};
void LaunchTopLogits(const TopLogits& top, cudaStream_t stream);

}  // namespace engine::backend::cuda
