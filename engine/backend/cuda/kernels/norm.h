// LayerNorm and RMSNorm over rows (the last dims of a tensor are one row), alone and with the residual addition around them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/backend/cuda/kernels/drawn.h"
#include "engine/base/dtype.h"

namespace engine::backend::cuda {

// Sizes: R rows, D columns. Elements of `dtype` where a pointer is void.
struct Norm {
  DType dtype = DType::kF32;  // f32, bf16, f16
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  float epsilon = 0;
  float gain_offset = 0;         // added to gamma
  const void* x = nullptr;       // [R, D]
  const void* branch = nullptr;  // [R, D]; null: x alone is normalised
  const void* part = nullptr;   // [R, D] the rest of the branch, added to it first; null: none; HoldsNormRows
  const void* bias = nullptr;   // [D] added to the branch; null: none
  DropoutMask dropout;          // of the branch with part and bias; HasWholeRows of it
  const void* gamma = nullptr;  // [D]
  const void* beta = nullptr;   // [D]; null: RMSNorm
  void* sum = nullptr;          // [R, D] x + branch, may be x or branch; unused without a branch
  void* y = nullptr;            // [R, D]
  float* mean = nullptr;        // [R]; unused by RMSNorm
  float* rstd = nullptr;        // [R]
};
void LaunchNorm(const Norm& norm, cudaStream_t stream);  // LaunchNormQuantize (quantize.h) drops nothing

struct NormGrad {
  DType dtype = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  float gain_offset = 0;     // added to gamma
  const void* dy = nullptr;  // [R, D]
  // [R, D] the rest of dy, added to it; null: none. Only with a residual, without y, where
  // MakeNormGradGrid gives a thread one vector.
  const void* part = nullptr;
  const void* x = nullptr;         // [R, D]
  const void* gamma = nullptr;     // [D]
  const float* mean = nullptr;     // [R]; null: RMSNorm
  const float* rstd = nullptr;     // [R]
  const void* residual = nullptr;  // [R, D] added to dx; null: none
  const void* beta = nullptr;      // [D] only for y; null: RMSNorm
  void* dx = nullptr;              // [R, D], may be dy
  void* y = nullptr;  // [R, D] the norm's output once more; null: not wanted; only with a residual
  // Σ dy·x̂, Σ dy (null for RMSNorm), Σ dx (null: not wanted; only with a residual), each [D].
  float* d_gamma = nullptr;
  float* d_beta = nullptr;
  float* d_bias = nullptr;
  // Added into what they hold, instead of overwriting it:
  bool accumulate_gamma = false;
  bool accumulate_beta = false;
  bool accumulate_bias = false;
  float* partial = nullptr;  // scratch: [blocks of MakeNormGradGrid, sums, D]
};
void LaunchNormGrad(const NormGrad& grad, cudaStream_t stream);

}  // namespace engine::backend::cuda
