#include "engine/backend/cpu/kernels/gemm.h"
#include "engine/backend/cpu/kernels/groups.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/loops.h"

namespace engine::backend::cpu {
namespace {

std::int64_t RowSize(const TensorView& rows) { return rows.shape.elements(1, rows.shape.rank()); }

// Rows that no choice has: those before, between and behind the groups.
template <typename T>
void ZeroEmptyRows(const TensorView& groups, const TensorView& rows) {
  const std::int64_t width = RowSize(rows);
  std::int64_t from = 0;
  const auto zero_to = [&](std::int64_t to) {
    if (to > from) std::fill_n(rows.as<T>() + from * width, (to - from) * width, T(0));
  };
  for (std::int64_t e = 0; e < groups.shape[0]; ++e) {
    const Group group = GroupOf(groups, e);
    zero_to(group.first);
    from = std::max(from, group.first + group.rows);
  }
  zero_to(rows.shape[0]);
}

// y = x · w of each expert, w as it lies or transposed; with `row_by_row` the bits of a row do not depend on how many there are.
template <typename T>
void Rows(const KernelArgs& args, bool transposed, bool row_by_row) {
  const TensorView& x = args.inputs[0];
  const TensorView& w = args.inputs[1];
  const TensorView& groups = args.inputs[2];
  const TensorView& y = args.outputs[0];
  const std::int64_t in = RowSize(x);
  const std::int64_t out = RowSize(y);
  ZeroEmptyRows<T>(groups, y);
  ForEachBlock(args, w.shape[0], 1, [&](std::int64_t e, std::int64_t) {
    const Group group = GroupOf(groups, e);
    const std::int64_t at_once = row_by_row ? 1 : group.rows;
    for (std::int64_t row = group.first; row < group.first + group.rows; row += at_once) {
      Run(Gemm<T>{.m = at_once,
                  .n = out,
                  .k = in,
                  .a = x.as<T>() + row * in,
                  .lda = in,
                  .b = w.as<T>() + e * in * out,
                  .ldb = transposed ? in : out,
                  .transpose_b = transposed,
                  .c = y.as<T>() + row * out,
                  .ldc = out});
    }
  });
}

}  // namespace

template <typename T>
void GroupedLinear(const KernelArgs& args) {
  Rows<T>(args, /*transposed=*/true, args.attributes->Int("invariant", 0) != 0);
}

template <typename T>
void GroupedLinearDgrad(const KernelArgs& args) {
  Rows<T>(args, /*transposed=*/false, /*row_by_row=*/false);
}

template <typename T>
void GroupedLinearWgrad(const KernelArgs& args) {
  const TensorView& dy = args.inputs[0];
  const TensorView& x = args.inputs[1];
  const TensorView& groups = args.inputs[2];
  const std::int64_t out = RowSize(dy);
  const std::int64_t in = RowSize(x);
  ForEachBlock(args, groups.shape[0], 1, [&](std::int64_t e, std::int64_t) {
    const Group group = GroupOf(groups, e);
    T* dw = args.outputs[0].as<T>() + e * out * in;
    if (group.rows == 0) {
      if (!Accumulates(args, 0)) std::fill_n(dw, out * in, T(0));
      return;
    }
    Run(Gemm<T>{.m = out,
                .n = in,
                .k = group.rows,
                .a = dy.as<T>() + group.first * out,
                .lda = out,
                .transpose_a = true,
                .b = x.as<T>() + group.first * in,
                .ldb = in,
                .c = dw,
                .ldc = in,
                .beta = Accumulates(args, 0) ? T(1) : T(0)});
  });
}

template void GroupedLinear<float>(const KernelArgs&);
template void GroupedLinear<double>(const KernelArgs&);
template void GroupedLinearDgrad<float>(const KernelArgs&);
template void GroupedLinearDgrad<double>(const KernelArgs&);
template void GroupedLinearWgrad<float>(const KernelArgs&);
template void GroupedLinearWgrad<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
