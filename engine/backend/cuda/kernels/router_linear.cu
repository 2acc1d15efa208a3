#include "engine/backend/cuda/kernels/router_linear.h"

#include "engine/backend/cuda/kernels/elementwise.cuh"

namespace engine::backend::cuda {
namespace {

constexpr int kThreads = kElementwiseThreads;

template <typename T>
__global__ void __launch_bounds__(kThreads)
    CutInTwoKernel(const float* __restrict__ dy, std::int64_t elements, std::int64_t out,
                   T* __restrict__ parts) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= elements) return;
  std::int64_t column;
  const std::int64_t row = Divide(at, out, &column);
  const float x = dy[at];
  const T high = FromFloat<T>(x);
  parts[row * 2 * out + column] = high;
  parts[(row * 2 + 1) * out + column] = FromFloat<T>(x - ToFloat(high));
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    AddTwoKernel(const float* __restrict__ parts, std::int64_t elements, bool accumulate,
                 T* __restrict__ dw) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= elements) return;
  const float sum = parts[at] + parts[elements + at];
  dw[at] = FromFloat<T>(accumulate ? ToFloat(dw[at]) + sum : sum);
}

}  // namespace

void CutInTwo(const float* dy, std::int64_t m, std::int64_t out, DType dtype, void* parts,
              cudaStream_t stream) {
  const std::int64_t elements = m * out;
  if (elements == 0) return;
  WithElementType(dtype, [&](auto element) {
    using T = decltype(element);
    CutInTwoKernel<T>
        <<<ElementwiseBlocks(elements, 1), kThreads, 0, stream>>>(dy, elements, out, static_cast<T*>(parts));
  });
}

void AddTwo(const float* parts, std::int64_t elements, bool accumulate, DType dtype, void* dw,
            cudaStream_t stream) {
  if (elements == 0) return;
  WithElementType(dtype, [&](auto element) {
    using T = decltype(element);
    AddTwoKernel<T><<<ElementwiseBlocks(elements, 1), kThreads, 0, stream>>>(parts, elements, accumulate,
                                                                             static_cast<T*>(dw));
  });
}

}  // namespace engine::backend::cuda
