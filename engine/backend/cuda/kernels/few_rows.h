// Products of few rows, as generation has them: the weights are read once, and memory sets their time. What stands behind such a
// product is done in its kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

#include "engine/backend/cuda/profile/few_rows.h"
#include "engine/base/dtype.h"
#include "engine/graph/activation.h"

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
  // y is behind it. Where there is one, `before_activation` may be not null: it is of `made`, too, and gets what is before it.
  std::optional<graph::Activation> activation = std::nullopt;
  void* before_activation = nullptr;
  // w is [2, columns, terms], and bias [2, columns]: y = activation(gate) · up, of which the gate comes first. `made` is `dtype`,
  // c is null.
  bool gated = false;
  // Not null: the product is of rows of x after a norm (ops/rms_norm.cpp; with beta ops/layer_norm.cpp), which is rounded as x is.
  // x has kMostNormedElements at most.
  const void* gamma = nullptr;  // [terms]
  const void* beta = nullptr;   // likewise
  float epsilon = 0, gain_offset = 0;
  bool gain_stays = false;  // no kernel writes gamma and beta
};

void LaunchFewRows(const FewRows& product, cudaStream_t stream);

}  // namespace engine::backend::cuda
