#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/loops.h"

namespace engine::backend::cpu {

template <typename T>
void Embedding(const KernelArgs& args) {
  const TensorView& table = args.inputs[1];
  const Piece rows = OnePiece(table, 0);
  const std::int64_t first_row = rows.start - args.attributes->Int("offset", 0);
  const std::int64_t columns = table.shape[1];
  const std::int32_t* ids = args.inputs[0].as<std::int32_t>();
  T* y = args.outputs[0].as<T>();
  ForEachBlock(args, args.inputs[0].shape.elements(), 64, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t token = first; token < last; ++token) {
      const std::int64_t row = ids[token] - first_row;
      if (row >= 0 && row < rows.length) {
        std::copy_n(table.as<T>() + row * columns, columns, y + token * columns);
      } else {
        std::fill_n(y + token * columns, columns, T(0));
      }
    }
  });
}

// A task owns some columns of every row and adds the tokens in order.
template <typename T>
void EmbeddingGrad(const KernelArgs& args) {
  constexpr std::int64_t kColumns = 64;
  const TensorView& d_table = args.outputs[0];
  const Piece rows = OnePiece(d_table, 0);
  const std::int64_t first_row = rows.start - args.attributes->Int("offset", 0);
  const std::int64_t columns = d_table.shape[1];
  const std::int64_t tokens = args.inputs[0].shape.elements();
  const std::int32_t* ids = args.inputs[0].as<std::int32_t>();
  const T* dy = args.inputs[1].as<T>();
  ForEachBlock(args, columns, kColumns, [&](std::int64_t first, std::int64_t last) {
    if (!Accumulates(args, 0)) {
      for (std::int64_t row = 0; row < d_table.shape[0]; ++row) {
        std::fill(d_table.as<T>() + row * columns + first, d_table.as<T>() + row * columns + last, T(0));
      }
    }
    for (std::int64_t token = 0; token < tokens; ++token) {
      const std::int64_t row = ids[token] - first_row;
      if (row < 0 || row >= rows.length) continue;
      T* sum = d_table.as<T>() + row * columns;
      for (std::int64_t i = first; i < last; ++i) sum[i] += dy[token * columns + i];
    }
  });
}

template void Embedding<float>(const KernelArgs&);
template void Embedding<double>(const KernelArgs&);
template void EmbeddingGrad<float>(const KernelArgs&);
template void EmbeddingGrad<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
