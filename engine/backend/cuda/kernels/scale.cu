#include "engine/backend/cuda/kernels/scale.h"

#include "engine/backend/cuda/kernels/elementwise.cuh"

namespace engine::backend::cuda {
namespace {

struct Scaled {
  float by;
  __device__ void operator()(const float (&in)[1], float (&out)[1]) const { out[0] = by * in[0]; }
};

}  // namespace

void LaunchScale(DType dtype, float by, std::int64_t elements, const void* x, void* y, cudaStream_t stream) {
  WithElementType(dtype, [&](auto element) {
    LaunchElementwise<decltype(element), 1, 1>(elements, {x}, {y}, Scaled{by}, stream);
  });
}

}  // namespace engine::backend::cuda
