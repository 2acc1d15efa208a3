#include <algorithm>

#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/loops.h"

namespace engine::backend::cpu {
namespace {

// y[C] = Σ_n x[n] w[n, C]
template <typename T>
void SumOfRows(const T* x, const T* w, std::int64_t rows, std::int64_t columns, T* y) {
  std::fill_n(y, columns, T(0));
  for (std::int64_t n = 0; n < rows; ++n) {
    for (std::int64_t c = 0; c < columns; ++c) y[c] += x[n] * w[n * columns + c];
  }
}

// y[N] = Σ_c x[c] w[N, c]
template <typename T>
void DotsWithRows(const T* x, const T* w, std::int64_t rows, std::int64_t columns, T* y) {
  for (std::int64_t n = 0; n < rows; ++n)
    y[n] = SumOf<T>(columns, [&](std::int64_t c) { return x[c] * w[n * columns + c]; });
}

}  // namespace

template <typename T>
void HeadLinear(const KernelArgs& args) {
  const TensorView& x = args.inputs[0];
  const TensorView& w = args.inputs[1];
  const TensorView& y = args.outputs[0];
  const bool transposed = args.attributes->Int("transposed", 0) != 0;
  const std::int64_t first = args.attributes->Int("first", 0);
  const std::int64_t heads = x.shape[2];
  const std::int64_t rows = w.shape[1];
  const std::int64_t columns = w.shape[2];
  ForEachBlock(args, x.shape.elements(0, 3), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const T* const of_head = w.as<T>() + row % heads * rows * columns;
      const T* const from = x.as<T>() + row * x.shape[3] + first;
      T* const to = y.as<T>() + row * y.shape[3];
      (transposed ? SumOfRows<T> : DotsWithRows<T>)(from, of_head, rows, columns, to);
    }
  });
}

template void HeadLinear<float>(const KernelArgs&);
template void HeadLinear<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
