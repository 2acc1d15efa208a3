#include "engine/backend/cuda/kernels/glu.h"

#include "engine/backend/cuda/kernels/activations.cuh"
#include "engine/backend/cuda/kernels/elementwise.cuh"

namespace engine::backend::cuda {
namespace {

constexpr int kGluThreads = kElementwiseThreads;

// elements: of y. A thread has kWidth of a row, which is a multiple of them.
template <typename T, int kWidth, graph::Activation kKind>
__global__ void __launch_bounds__(kGluThreads)
    GluKernel(std::int64_t elements, std::int64_t ffn, const T* x, T* y) {
  const std::int64_t at = (std::int64_t{blockIdx.x} * kGluThreads + threadIdx.x) * kWidth;
  if (at >= elements) return;
  std::int64_t column;
  const std::int64_t row = Divide(at, ffn, &column);
  float gate[kWidth];
  float up[kWidth];
  LoadElements(x + row * 2 * ffn + column, gate);
  LoadElements(x + (row * 2 + 1) * ffn + column, up);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    float value;
    float derivative;
    ActivationOf<kKind, sizeof(T) == 4>(gate[i], &value, &derivative);
    gate[i] = value * up[i];
  }
  StoreElements(y + at, gate);
}

template <typename T, int kWidth, graph::Activation kKind>
__global__ void __launch_bounds__(kGluThreads)
    GluGradKernel(std::int64_t elements, std::int64_t ffn, const T* x, const T* dy, T* dx) {
  const std::int64_t at = (std::int64_t{blockIdx.x} * kGluThreads + threadIdx.x) * kWidth;
  if (at >= elements) return;
  std::int64_t column;
  const std::int64_t row = Divide(at, ffn, &column);
  const std::int64_t gate_at = row * 2 * ffn + column;
  float gate[kWidth];
  float up[kWidth];
  float d[kWidth];
  LoadElements(x + gate_at, gate);
  LoadElements(x + gate_at + ffn, up);
  LoadElements(dy + at, d);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    float value;
    float derivative;
    ActivationOf<kKind, sizeof(T) == 4>(gate[i], &value, &derivative);
    up[i] = d[i] * up[i] * derivative;
    d[i] *= value;
  }
  StoreElements(dx + gate_at, up);
  StoreElements(dx + gate_at + ffn, d);
}

// Calls launch(kernel's types) for an element type, a width and a kind, each as a constant.
template <typename Launch>
void WithGlu(DType dtype, std::string_view kind, std::int64_t ffn, const Launch& launch) {
  graph::WithActivation<graph::kGateKinds>(kind, [&](auto of_kind) {
    WithElementType(dtype, [&](auto element) {
      ffn % 8 == 0 ? launch(element, std::integral_constant<int, 8>(), of_kind)
                   : launch(element, std::integral_constant<int, 1>(), of_kind);
    });
  });
}

}  // namespace

void LaunchGlu(DType dtype, std::string_view kind, std::int64_t rows, std::int64_t ffn, const void* x,
               void* y, cudaStream_t stream) {
  const std::int64_t elements = rows * ffn;
  if (elements == 0) return;
  WithGlu(dtype, kind, ffn, [&](auto element, auto width, auto of_kind) {
    using T = decltype(element);
    constexpr int kWidth = decltype(width)::value;
    GluKernel<T, kWidth, decltype(of_kind)::value>
        <<<ElementwiseBlocks(elements, kWidth), kGluThreads, 0, stream>>>(
            elements, ffn, static_cast<const T*>(x), static_cast<T*>(y));
  });
}

void LaunchGluGrad(DType dtype, std::string_view kind, std::int64_t rows, std::int64_t ffn, const void* x,
                   const void* dy, void* dx, cudaStream_t stream) {
  const std::int64_t elements = rows * ffn;
  if (elements == 0) return;
  WithGlu(dtype, kind, ffn, [&](auto element, auto width, auto of_kind) {
    using T = decltype(element);
    constexpr int kWidth = decltype(width)::value;
    GluGradKernel<T, kWidth, decltype(of_kind)::value>
        <<<ElementwiseBlocks(elements, kWidth), kGluThreads, 0, stream>>>(
            elements, ffn, static_cast<const T*>(x), static_cast<const T*>(dy), static_cast<T*>(dx));
  });
}

}  // namespace engine::backend::cuda
