#include <algorithm>

#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/loops.h"

namespace engine::backend::cpu {
namespace {

struct Rows {
  std::int64_t count, width;
  std::int64_t block() const {
    return std::max<std::int64_t>(1, kElementBlock / std::max<std::int64_t>(1, width));
  }
};

Rows RowsOf(const Shape& shape) {
  const std::int64_t width = shape[shape.rank() - 1];
  return {.count = shape.elements(0, shape.rank() - 1), .width = width};
}

}  // namespace

template <typename T>
void ScaleRows(const KernelArgs& args) {
  const T* x = args.inputs[0].as<T>();
  const T* s = args.inputs[1].as<T>();
  T* y = args.outputs[0].as<T>();
  const Rows rows = RowsOf(args.inputs[0].shape);
  ForEachBlock(args, rows.count, rows.block(), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      const T factor = s[row];
      for (std::int64_t i = row * rows.width; i < (row + 1) * rows.width; ++i) y[i] = factor * x[i];
    }
  });
}

template <typename T>
void RowDot(const KernelArgs& args) {
  const T* a = args.inputs[0].as<T>();
  const T* b = args.inputs[1].as<T>();
  T* y = args.outputs[0].as<T>();
  const Rows rows = RowsOf(args.inputs[0].shape);
  ForEachBlock(args, rows.count, rows.block(), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      const std::int64_t at = row * rows.width;
      y[row] = SumOf<T>(rows.width, [&](std::int64_t i) { return a[at + i] * b[at + i]; });
    }
  });
}

template void ScaleRows<float>(const KernelArgs&);
template void ScaleRows<double>(const KernelArgs&);
template void RowDot<float>(const KernelArgs&);
template void RowDot<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
