#include "engine/backend/cpu/kernels/gemm.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/loops.h"

namespace engine::backend::cpu {
namespace {

// Sizes of the product behind the collapsed dims: x[M, I], w[O, I], y[M, O].
struct Sizes {
  std::int64_t m, in, out;
};

Sizes SizesOf(const Shape& w, std::int64_t x_elements, const graph::Attributes& attributes) {
  const int contracted = static_cast<int>(attributes.Int("in_dims"));
  const std::int64_t in = w.elements(w.rank() - contracted, w.rank());
  return {x_elements / in, in, w.elements() / in};
}

// The grid of tasks over a result of m × n: tiles of up to 512 × 512, halved along the longer side while
// there are fewer than 4 and no side falls below 128. A function of the shape alone.
struct Grid {
  std::int64_t rows, columns;  // of a tile
};
Grid GridOf(std::int64_t m, std::int64_t n) {
  Grid grid = {std::min<std::int64_t>(m, 512), std::min<std::int64_t>(n, 512)};
  const auto tiles = [&] {
    return ((m + grid.rows - 1) / grid.rows) * ((n + grid.columns - 1) / grid.columns);
  };
  while (tiles() < 4 && std::max(grid.rows, grid.columns) >= 256) {
    std::int64_t& side = grid.rows >= grid.columns ? grid.rows : grid.columns;
    side = (side / 2 + 15) / 16 * 16;
  }
  return grid;
}

// The whole product, tile by tile in parallel; bias[n] is added if not null.
template <typename T>
void RunTiled(const KernelArgs& args, const Gemm<T>& whole, const T* bias) {
  if (whole.m == 0 || whole.n == 0) return;
  const Grid grid = GridOf(whole.m, whole.n);
  const std::int64_t across = (whole.n + grid.columns - 1) / grid.columns;
  const std::int64_t down = (whole.m + grid.rows - 1) / grid.rows;
  ForEachBlock(args, across * down, 1, [&](std::int64_t tile, std::int64_t) {
    const std::int64_t row = tile / across * grid.rows;
    const std::int64_t column = tile % across * grid.columns;
    Gemm<T> part = whole;
    part.m = std::min(grid.rows, whole.m - row);
    part.n = std::min(grid.columns, whole.n - column);
    part.a += whole.transpose_a ? row : row * whole.lda;
    part.b += whole.transpose_b ? column * whole.ldb : column;
    part.c += row * whole.ldc + column;
    if (bias != nullptr) {
      for (std::int64_t i = 0; i < part.m; ++i) std::copy_n(bias + column, part.n, part.c + i * part.ldc);
      part.beta = 1;
    }
    Run(part);
  });
}

// The same, a row at a time, so that a row's bits do not depend on how many there are.
template <typename T>
void RunRowByRow(const KernelArgs& args, const Gemm<T>& whole, const T* bias) {
  Gemm<T> row = whole;
  row.m = 1;
  KernelArgs alone = args;
  alone.context = nullptr;  // rows are in parallel already
  ForEachBlock(args, whole.m, 1, [&](std::int64_t i, std::int64_t) {
    Gemm<T> of_row = row;
    of_row.a += i * whole.lda;
    of_row.c += i * whole.ldc;
    RunTiled(alone, of_row, bias);
  });
}

}  // namespace

template <typename T>
void Linear(const KernelArgs& args) {
  const TensorView& x = args.inputs[0];
  const TensorView& w = args.inputs[1];
  const Sizes s = SizesOf(w.shape, x.shape.elements(), *args.attributes);
  const T* bias = args.inputs.size() == 3 ? args.inputs[2].as<T>() : nullptr;
  const Gemm<T> product = {.m = s.m,
                           .n = s.out,
                           .k = s.in,
                           .a = x.as<T>(),
                           .lda = s.in,
                           .b = w.as<T>(),
                           .ldb = s.in,
                           .transpose_b = true,
                           .c = args.outputs[0].as<T>(),
                           .ldc = s.out};
  if (args.attributes->Int("invariant", 0) != 0) {
    RunRowByRow(args, product, bias);
  } else {
    RunTiled(args, product, bias);
  }
}

template <typename T>
void LinearDgrad(const KernelArgs& args) {
  const TensorView& dy = args.inputs[0];
  const TensorView& w = args.inputs[1];
  const Sizes s = SizesOf(w.shape, args.outputs[0].shape.elements(), *args.attributes);
  RunTiled<T>(args,
              {.m = s.m,
               .n = s.in,
               .k = s.out,
               .a = dy.as<T>(),
               .lda = s.out,
               .b = w.as<T>(),
               .ldb = s.in,
               .c = args.outputs[0].as<T>(),
               .ldc = s.in},
              nullptr);
}

template <typename T>
void LinearWgrad(const KernelArgs& args) {
  const TensorView& dy = args.inputs[0];
  const TensorView& x = args.inputs[1];
  const Sizes s = SizesOf(args.outputs[0].shape, x.shape.elements(), *args.attributes);
  RunTiled<T>(args,
              {.m = s.out,
               .n = s.in,
               .k = s.m,
               .a = dy.as<T>(),
               .lda = s.out,
               .transpose_a = true,
               .b = x.as<T>(),
               .ldb = s.in,
               .c = args.outputs[0].as<T>(),
               .ldc = s.in,
               .beta = Accumulates(args, 0) ? T(1) : T(0)},
              nullptr);
}

template void Linear<float>(const KernelArgs&);
template void Linear<double>(const KernelArgs&);
template void LinearDgrad<float>(const KernelArgs&);
template void LinearDgrad<double>(const KernelArgs&);
template void LinearWgrad<float>(const KernelArgs&);
template void LinearWgrad<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
