// The portable kernels in FP8. Both operands lie with the summed dim inside (grouped.h).
#include "engine/backend/cuda/kernels/grouped_portable.cuh"

namespace engine::backend::cuda::grouped_portable {
namespace {

__device__ __forceinline__ void Scale(float by, float (&sums)[kEach][kEach]) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) sums[i][j] *= by;
  }
}

// kForward, kDgrad. Block (rows, columns).
template <typename A, typename Result>
__global__ void __launch_bounds__(kThreads) Fp8RowsKernel(GroupedProduct p) {
  using B = __nv_fp8_e4m3;
  const std::int64_t row = std::int64_t{blockIdx.x} * kTile;
  const std::int64_t n = std::int64_t{blockIdx.y} * kTile;
  const std::int64_t expert = ExpertOf(p, row);
  if (expert < 0) return;
  const bool forward = p.kind == GroupedKind::kForward;
  const std::int64_t k = forward ? p.in : p.out;
  const std::int64_t columns = p.n();
  const std::int64_t first = p.groups[2 * expert];
  const std::int64_t rows = p.groups[2 * expert + 1];
  const Operand<A> a = {static_cast<const A*>(p.a) + first * k, k, 1, rows, k};
  // Of w as [O, I] an expert, or as [I, E, O].
  const B* const w = static_cast<const B*>(p.b) + expert * (forward ? p.out * p.in : p.out);
  const Operand<B> b = {w, forward ? p.in : p.experts * p.out, 1, columns, k};
  float sums[kEach][kEach] = {};
  SumTile(a, b, row - first, n, sums);
  Scale(*p.a_unit * *p.b_unit, sums);
  StoreTile(sums, row - first, n, WithFilling(rows), columns, false,
            static_cast<Result*>(p.d) + first * columns);
}

// kWgrad. Block (columns, rows of dw, expert).
template <typename A, typename Result>
__global__ void __launch_bounds__(kThreads) Fp8WeightsKernel(GroupedProduct p) {
  using B = __nv_fp8_e4m3;
  const std::int64_t n = std::int64_t{blockIdx.x} * kTile;
  const std::int64_t m = std::int64_t{blockIdx.y} * kTile;
  const std::int64_t expert = blockIdx.z;
  const std::int64_t first = p.groups[2 * expert];
  const std::int64_t rows = p.groups[2 * expert + 1];
  const Operand<A> a = {static_cast<const A*>(p.a) + first, p.rows, 1, p.out, rows};
  const Operand<B> b = {static_cast<const B*>(p.b) + first, p.rows, 1, p.in, rows};
  float sums[kEach][kEach] = {};
  SumTile(a, b, m, n, sums);
  Scale(*p.a_unit * *p.b_unit, sums);
  StoreTile(sums, m, n, p.out, p.in, p.accumulate, static_cast<Result*>(p.d) + expert * p.out * p.in);
}

template <typename A, typename Result>
void LaunchOf(const GroupedProduct& p, cudaStream_t stream) {
  if (p.kind != GroupedKind::kWgrad) {
    Fp8RowsKernel<A, Result><<<dim3(Blocks(p.rows, kTile), Blocks(p.n(), kTile)), kThreads, 0, stream>>>(p);
    return;
  }
  const dim3 grid(Blocks(p.in, kTile), Blocks(p.out, kTile), static_cast<unsigned>(p.experts));
  Fp8WeightsKernel<A, Result><<<grid, kThreads, 0, stream>>>(p);
}

}  // namespace

void LaunchFp8(const GroupedProduct& product, cudaStream_t stream) {
  WithElementType(product.result, [&](auto result) {
    using Result = decltype(result);
    product.operands == DType::kE5M2 ? LaunchOf<__nv_fp8_e5m2, Result>(product, stream)
                                     : LaunchOf<__nv_fp8_e4m3, Result>(product, stream);
  });
}

}  // namespace engine::backend::cuda::grouped_portable
