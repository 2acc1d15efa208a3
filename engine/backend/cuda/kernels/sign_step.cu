#include "engine/backend/cuda/kernels/optimizer.h"
#include "engine/backend/cuda/kernels/update.cuh"
#include "engine/backend/cuda/kernels/vector.cuh"
#include "engine/plan/control.h"

namespace engine::backend::cuda {
namespace {

__global__ void SignStepKernel(float* __restrict__ weights, const float* __restrict__ grad,
                               std::int64_t count, float step, const double* __restrict__ control) {
  if (control[plan::kGradientFactor] == 0) return;  // a skipped update
  for (std::int64_t i = ThreadIndex(); i < count; i += ThreadCount()) {
    const float sign = static_cast<float>(grad[i] > 0.0F) - static_cast<float>(grad[i] < 0.0F);
    weights[i] -= step * sign;
  }
}

}  // namespace

void SignStep(float* weights, const float* grad, std::int64_t count, double step, const double* control,
              cudaStream_t stream) {
  SignStepKernel<<<Blocks(count, 1, 1024), kThreads, 0, stream>>>(weights, grad, count,
                                                                  static_cast<float>(step), control);
}

}  // namespace engine::backend::cuda
