#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/loops.h"

namespace engine::backend::cpu {

template <typename T>
void BiasAdd(const KernelArgs& args) {
  const std::int64_t columns = args.inputs[1].shape.elements();
  const std::int64_t rows = args.inputs[0].shape.elements() / columns;
  const T* x = args.inputs[0].as<T>();
  const T* bias = args.inputs[1].as<T>();
  T* y = args.outputs[0].as<T>();
  ForEachBlock(args, rows, std::max<std::int64_t>(1, kElementBlock / columns),
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t row = first; row < last; ++row) {
                   for (std::int64_t i = 0; i < columns; ++i)
                     y[row * columns + i] = x[row * columns + i] + bias[i];
                 }
               });
}

// A task owns some columns and runs down all rows; partial sums over 64 rows keep the rounding error that of
// 64 + rows/64 additions.
template <typename T>
void BiasGrad(const KernelArgs& args) {
  constexpr std::int64_t kColumns = 64;
  constexpr std::int64_t kRows = 64;
  const std::int64_t columns = args.outputs[0].shape.elements();
  const std::int64_t rows = args.inputs[0].shape.elements() / columns;
  const T* dy = args.inputs[0].as<T>();
  T* db = args.outputs[0].as<T>();
  ForEachBlock(args, columns, kColumns, [&](std::int64_t first, std::int64_t last) {
    T total[kColumns] = {};
    for (std::int64_t row = 0; row < rows; row += kRows) {
      T partial[kColumns] = {};
      for (std::int64_t r = row; r < std::min(rows, row + kRows); ++r) {
        const T* line = dy + r * columns + first;
        for (std::int64_t i = 0; i < last - first; ++i) partial[i] += line[i];
      }
      for (std::int64_t i = 0; i < kColumns; ++i) total[i] += partial[i];
    }
    for (std::int64_t i = first; i < last; ++i)
      db[i] = (Accumulates(args, 0) ? db[i] : T(0)) + total[i - first];
  });
}

template void BiasAdd<float>(const KernelArgs&);
template void BiasAdd<double>(const KernelArgs&);
template void BiasGrad<float>(const KernelArgs&);
template void BiasGrad<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
