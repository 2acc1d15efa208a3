#include "engine/backend/cuda/kernels/relu2.h"

#include "engine/backend/cuda/kernels/elementwise.cuh"

namespace engine::backend::cuda {
namespace {

struct Relu2 {
  __device__ void operator()(const float (&in)[1], float (&out)[1]) const {
    const float positive = fmaxf(in[0], 0.0F);
    out[0] = positive * positive;
  }
};

struct Relu2Grad {
  __device__ void operator()(const float (&in)[2], float (&out)[1]) const {
    out[0] = 2.0F * fmaxf(in[0], 0.0F) * in[1];
  }
};

}  // namespace

void LaunchRelu2(DType dtype, std::int64_t elements, const void* x, void* y, cudaStream_t stream) {
  WithElementType(dtype, [&](auto element) {
    LaunchElementwise<decltype(element), 1, 1>(elements, {x}, {y}, Relu2(), stream);
  });
}

void LaunchRelu2Grad(DType dtype, std::int64_t elements, const void* x, const void* dy, void* dx,
                     cudaStream_t stream) {
  WithElementType(dtype, [&](auto element) {
    LaunchElementwise<decltype(element), 2, 1>(elements, {x, dy}, {dx}, Relu2Grad(), stream);
  });
}

}  // namespace engine::backend::cuda
