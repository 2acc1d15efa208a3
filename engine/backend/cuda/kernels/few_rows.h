// Products of few rows, as generation has them: the weights are read once, and memory sets their time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/base/dtype.h"

namespace engine::backend::cuda {

// y[rows, columns] = x[rows, terms] · wᵀ (+ bias) (+ c), w [columns, terms]. x, w and bias of `dtype`, y and c of `made`.
struct FewRows {
  DType dtype = DType::kBF16;  // bf16 or f16; sums are fp32, in an order that columns and terms alone set
  DType made = DType::kBF16;   // the same, or f32
  std::int64_t rows = 0, columns = 0, terms = 0;
  const void* x = nullptr;
  const void* w = nullptr;
  const void* bias = nullptr;  // null: none
  const void* c = nullptr;     // null: none; may be y
  void* y = nullptr;
  bool w_stays = false;  // no kernel writes w: it may be read before those in front have ended
  // Not null: `made` too, gets what is before tanh-GELU, which y is behind.
  void* before_gelu = nullptr;
};

inline constexpr std::int64_t kMostFewRows = 16;

// Whether a product of these sizes is one for LaunchFewRows.
constexpr bool IsFewRows(DType dtype, DType made, std::int64_t rows, std::int64_t terms) {
  const bool is_half = dtype == DType::kBF16 || dtype == DType::kF16;
  return is_half && (made == dtype || made == DType::kF32) && rows <= kMostFewRows && terms % 8 == 0;
}

void LaunchFewRows(const FewRows& product, cudaStream_t stream);

}  // namespace engine::backend::cuda
