// Element by element: additions, activations, dropout, jitter. And the column sums that go with a bias.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/backend/cuda/kernels/drawn.h"
#include "engine/base/dtype.h"

namespace engine::backend::cuda {

// `dtype` is that of every void pointer: f32, bf16, f16. An output may be an input of its shape.

// y = a + b, of `elements` each.
void LaunchAdd(DType dtype, std::int64_t elements, const void* a, const void* b, void* y,
               cudaStream_t stream);

// y[R, C] = x[R, C] + bias[C].
void LaunchBiasAdd(DType dtype, std::int64_t rows, std::int64_t columns, const void* x, const void* bias,
                   void* y, cudaStream_t stream);

// d_bias[C] (+)= Σ_R dy[R, C]. partial: scratch [chunks of MakeBiasGradGrid, C].
void LaunchBiasGrad(DType dtype, std::int64_t rows, std::int64_t columns, const void* dy, float* d_bias,
                    bool accumulate, float* partial, cudaStream_t stream);

// y = gelu(x), the tanh form or the erf form.
void LaunchGelu(DType dtype, bool tanh_form, std::int64_t elements, const void* x, void* y,
                cudaStream_t stream);
// dx = dy · gelu'(x) and, where y is not null, y = gelu(x).
void LaunchGeluGrad(DType dtype, bool tanh_form, std::int64_t elements, const void* x, const void* dy,
                    void* dx, void* y, cudaStream_t stream);
// The same on x[R, F] with y, and d_bias[F] (+)= Σ_R of dx as rounded. partial: scratch [chunks of
// MakeShortGrid, F].
void LaunchGeluGradAgain(DType dtype, bool tanh_form, std::int64_t rows, std::int64_t columns, const void* x,
                         const void* dy, void* dx, void* y, float* d_bias, bool accumulate, float* partial,
                         cudaStream_t stream);

// x[R, 2, F] → y[R, F].
void LaunchSwiglu(DType dtype, std::int64_t rows, std::int64_t ffn, const void* x, void* y,
                  cudaStream_t stream);
// x[R, 2, F], dy[R, F] → dx[R, 2, F] and, where it is not null, y[R, F].
void LaunchSwigluGrad(DType dtype, std::int64_t rows, std::int64_t ffn, const void* x, const void* dy,
                      void* dx, void* y, cudaStream_t stream);

struct Dropout {
  DType dtype = DType::kF32;
  DropoutMask mask;
  const void* x = nullptr;
  void* y = nullptr;  // may be x
};
void LaunchDropout(const Dropout& dropout, cudaStream_t stream);
// The same on x[R, C], C being the last dim, with y ≠ x, and d_bias[C] (+)= Σ_R of y as rounded. partial: scratch [chunks of
// MakeShortGrid, C].
void LaunchDropoutGradBias(const Dropout& dropout, float* d_bias, bool accumulate, float* partial,
                           cudaStream_t stream);

// y = x · (least + range · u), with u uniform in [0, 1): the words of Philox4x32-10 by element (UniformFromWord).
struct Jitter {
  DType dtype = DType::kF32;
  Drawn drawn;
  const void* x = nullptr;
  void* y = nullptr;  // may be x
  float least = 1;
  float range = 0;
};
void LaunchJitter(const Jitter& jitter, cudaStream_t stream);

}  // namespace engine::backend::cuda
