#include "engine/backend/cuda/kernels/scale_rows.h"

#include "engine/backend/cuda/kernels/elementwise.cuh"

namespace engine::backend::cuda {
namespace {

constexpr int kRowThreads = 256;
constexpr int kRowsOfBlock = kRowThreads / kWarp;

// A thread takes kWidth neighbours of one row; columns are a multiple of kWidth.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kElementwiseThreads)
    ScaleRowsKernel(std::int64_t elements, std::int64_t columns, const T* x, const T* s, T* y) {
  const std::int64_t at = (std::int64_t{blockIdx.x} * kElementwiseThreads + threadIdx.x) * kWidth;
  if (at >= elements) return;
  std::int64_t column = 0;
  const float factor = ToFloat(s[Divide(at, columns, &column)]);
  float values[kWidth];
  LoadElements(x + at, values);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) values[i] *= factor;
  StoreElements(y + at, values);
}

// A warp takes a row, and its lanes add up in a fixed order.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kRowThreads)
    RowDotKernel(std::int64_t rows, std::int64_t columns, const T* a, const T* b, T* y) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kRowsOfBlock + threadIdx.x / kWarp;
  if (row >= rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float sum = 0.0F;
  for (std::int64_t column = lane * kWidth; column < columns; column += kWarp * kWidth) {
    float of_a[kWidth];
    float of_b[kWidth];
    LoadElements(a + row * columns + column, of_a);
    LoadElements(b + row * columns + column, of_b);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum += of_a[i] * of_b[i];
  }
  sum = WarpSum(sum);
  if (lane == 0) y[row] = FromFloat<T>(sum);
}

template <typename T, int kWidth>
void ScaleRows(std::int64_t rows, std::int64_t columns, const void* x, const void* s, void* y,
               cudaStream_t stream) {
  const std::int64_t elements = rows * columns;
  ScaleRowsKernel<T, kWidth><<<ElementwiseBlocks(elements, kWidth), kElementwiseThreads, 0, stream>>>(
      elements, columns, static_cast<const T*>(x), static_cast<const T*>(s), static_cast<T*>(y));
}

template <typename T, int kWidth>
void RowDot(std::int64_t rows, std::int64_t columns, const void* a, const void* b, void* y,
            cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(CeilDivide(rows, kRowsOfBlock));
  RowDotKernel<T, kWidth><<<blocks, kRowThreads, 0, stream>>>(rows, columns, static_cast<const T*>(a),
                                                              static_cast<const T*>(b), static_cast<T*>(y));
}

}  // namespace

void LaunchScaleRows(DType dtype, std::int64_t rows, std::int64_t columns, const void* x, const void* s,
                     void* y, cudaStream_t stream) {
  if (rows * columns == 0) return;
  WithElementType(dtype, [&](auto element) {
    using T = decltype(element);
    if (columns % 8 == 0) return ScaleRows<T, 8>(rows, columns, x, s, y, stream);
    ScaleRows<T, 1>(rows, columns, x, s, y, stream);
  });
}

void LaunchRowDot(DType dtype, std::int64_t rows, std::int64_t columns, const void* a, const void* b, void* y,
                  cudaStream_t stream) {
  if (rows == 0) return;
  WithElementType(dtype, [&](auto element) {
    using T = decltype(element);
    if (columns % 8 == 0) return RowDot<T, 8>(rows, columns, a, b, y, stream);
    RowDot<T, 1>(rows, columns, a, b, y, stream);
  });
}

}  // namespace engine::backend::cuda
