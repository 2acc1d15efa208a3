#include "engine/backend/cuda/kernels/multiply.h"

#include "engine/backend/cuda/kernels/elementwise.cuh"

namespace engine::backend::cuda {
namespace {

struct Product {
  __device__ void operator()(const float (&in)[2], float (&out)[1]) const { out[0] = in[0] * in[1]; }
};

}  // namespace

void LaunchMultiply(DType dtype, std::int64_t elements, const void* a, const void* b, void* y,
                    cudaStream_t stream) {
  WithElementType(dtype, [&](auto element) {
    LaunchElementwise<decltype(element), 2, 1>(elements, {a, b}, {y}, Product(), stream);
  });
}

}  // namespace engine::backend::cuda
