// The activation between the products of an expert, with the weights of the routes (engine/ops/expert_activation.cpp).
// R rows, F features.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string_view>

#include "engine/base/dtype.h"

namespace engine::backend::cuda {

struct ExpertActivationRows {
  std::string_view act;  // of graph::kExpertActivations; read by the launchers alone
  bool gated = false;
  DType dtype = DType::kF32;                // of h, y and their gradients
  std::int64_t rows = 0;                    // R
  std::int64_t ffn = 0;                     // F
  const void* h = nullptr;                  // [R, 2, F], or [R, F] where it is not gated
  const float* weight = nullptr;            // of each choice
  const std::int32_t* choice_of = nullptr;  // [R]; −1: none
  std::int64_t most_blocks = 0;  // that a launch may have, which then take their rows in turns; 0: any number
};

// y[R, F]: zeros in rows that fill up a group; rows behind the last group are not touched (kernels/expert_rows.h).
void LaunchExpertActivation(const ExpertActivationRows& rows, void* y, cudaStream_t stream);

// dy[R, F] → dh as h, with zeros and rows that are not touched as above, and it may be h; d_weight f32 of each of `choices`
// choices, 0 where it has no row here (`choices` 0: what it holds, so that rows may come in parts); y as above, unless it is null.
void LaunchExpertActivationGrad(const ExpertActivationRows& rows, const void* dy, void* dh, float* d_weight,
                                std::int64_t choices, void* y, cudaStream_t stream);

}  // namespace engine::backend::cuda
