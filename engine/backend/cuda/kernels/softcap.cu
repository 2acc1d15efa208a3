#include "engine/backend/cuda/kernels/softcap.h"

#include "engine/backend/cuda/kernels/elementwise.cuh"

namespace engine::backend::cuda {
namespace {

// tanhf in 16 bits too: the relative error of tanh.approx.f32 is above the rounding of f16.
struct Capped {
  float cap;
  __device__ void operator()(const float (&in)[1], float (&out)[1]) const {
    out[0] = cap * tanhf(in[0] / cap);
  }
};

struct CappedGrad {
  float cap;
  __device__ void operator()(const float (&in)[2], float (&out)[1]) const {
    const float share = in[0] / cap;
    out[0] = in[1] * (1.0F - share * share);
  }
};

}  // namespace

void LaunchSoftcap(DType dtype, float cap, std::int64_t elements, const void* x, void* y,
                   cudaStream_t stream) {
  WithElementType(dtype, [&](auto element) {
    LaunchElementwise<decltype(element), 1, 1>(elements, {x}, {y}, Capped{cap}, stream);
  });
}

void LaunchSoftcapGrad(DType dtype, float cap, std::int64_t elements, const void* y, const void* dy, void* dx,
                       cudaStream_t stream) {
  WithElementType(dtype, [&](auto element) {
    LaunchElementwise<decltype(element), 2, 1>(elements, {y, dy}, {dx}, CappedGrad{cap}, stream);
  });
}

}  // namespace engine::backend::cuda
