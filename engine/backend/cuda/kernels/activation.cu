#include "engine/backend/cuda/kernels/activation.h"

#include "engine/backend/cuda/kernels/activations.cuh"
#include "engine/backend/cuda/kernels/elementwise.cuh"

namespace engine::backend::cuda {
namespace {

template <graph::Activation kKind, bool kExact>
struct ActivationValue {
  __device__ void operator()(const float (&in)[1], float (&out)[1]) const {
    float derivative;
    ActivationOf<kKind, kExact>(in[0], &out[0], &derivative);
  }
};

template <graph::Activation kKind, bool kExact>
struct ActivationGradValue {
  __device__ void operator()(const float (&in)[2], float (&out)[1]) const {
    float value;
    float derivative;
    ActivationOf<kKind, kExact>(in[0], &value, &derivative);
    out[0] = in[1] * derivative;
  }
};

}  // namespace

void LaunchActivation(DType dtype, std::string_view kind, std::int64_t elements, const void* x, void* y,
                      cudaStream_t stream) {
  graph::WithActivation<graph::kActivationKinds>(kind, [&](auto of_kind) {
    WithElementType(dtype, [&](auto element) {
      using T = decltype(element);
      using Function = ActivationValue<decltype(of_kind)::value, sizeof(T) == 4>;
      LaunchElementwise<T, 1, 1>(elements, {x}, {y}, Function(), stream);
    });
  });
}

void LaunchActivationGrad(DType dtype, std::string_view kind, std::int64_t elements, const void* x,
                          const void* dy, void* dx, cudaStream_t stream) {
  graph::WithActivation<graph::kActivationKinds>(kind, [&](auto of_kind) {
    WithElementType(dtype, [&](auto element) {
      using T = decltype(element);
      using Function = ActivationGradValue<decltype(of_kind)::value, sizeof(T) == 4>;
      LaunchElementwise<T, 2, 1>(elements, {x, dy}, {dx}, Function(), stream);
    });
  });
}

}  // namespace engine::backend::cuda
