// The portable kernels in f32, bf16 and f16, and the order of the experts.
#include "engine/backend/cuda/kernels/grouped.h"

#include "engine/backend/cuda/kernels/grouped_portable.cuh"

namespace engine::backend::cuda {
namespace {

using namespace grouped_portable;

// kForward, kDgrad. Block (rows, columns).
template <typename T>
__global__ void __launch_bounds__(kThreads) RowsKernel(GroupedProduct p) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kTile;
  const std::int64_t n = std::int64_t{blockIdx.y} * kTile;
  const std::int64_t expert = ExpertOf(p, row);
  if (expert < 0) return;
  const bool forward = p.kind == GroupedKind::kForward;
  const std::int64_t k = forward ? p.in : p.out;
  const std::int64_t columns = p.n();
  const std::int64_t first = p.groups[2 * expert];
  const std::int64_t rows = p.groups[2 * expert + 1];
  const Operand<T> a = {static_cast<const T*>(p.a) + first * k, k, 1, rows, k};
  const T* w = static_cast<const T*>(p.b) + expert * p.out * p.in;
  const Operand<T> b = {w, forward ? k : 1, forward ? 1 : columns, columns, k};
  float sums[kEach][kEach] = {};
  SumTile(a, b, row - first, n, sums);
  StoreTile(sums, row - first, n, WithFilling(rows), columns, false, static_cast<T*>(p.d) + first * columns);
}

// kWgrad. Block (columns, rows of dw, expert).
template <typename T, typename Result>
__global__ void __launch_bounds__(kThreads) WeightsKernel(GroupedProduct p) {
  const std::int64_t n = std::int64_t{blockIdx.x} * kTile;
  const std::int64_t m = std::int64_t{blockIdx.y} * kTile;
  const std::int64_t expert = blockIdx.z;
  const std::int64_t first = p.groups[2 * expert];
  const std::int64_t rows = p.groups[2 * expert + 1];
  const Operand<T> a = {static_cast<const T*>(p.a) + first * p.out, 1, p.out, p.out, rows};
  const Operand<T> b = {static_cast<const T*>(p.b) + first * p.in, 1, p.in, p.in, rows};
  float sums[kEach][kEach] = {};
  SumTile(a, b, m, n, sums);
  StoreTile(sums, m, n, p.out, p.in, p.accumulate, static_cast<Result*>(p.d) + expert * p.out * p.in);
}

// A thread an expert: its place is the number of experts that come before it.
__global__ void __launch_bounds__(kThreads)
    OrderKernel(const std::int32_t* groups, int experts, std::int32_t* order) {
  __shared__ std::int32_t others[kThreads];
  const int expert = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const std::int32_t rows = expert < experts ? groups[2 * expert + 1] : 0;
  int place = 0;
  for (int from = 0; from < experts; from += kThreads) {
    const int other = from + static_cast<int>(threadIdx.x);
    __syncthreads();
    others[threadIdx.x] = other < experts ? groups[2 * other + 1] : 0;
    __syncthreads();
    for (int i = 0; i < min(kThreads, experts - from); ++i)
      place += others[i] > rows || (others[i] == rows && from + i < expert) ? 1 : 0;
  }
  if (expert < experts) order[place] = expert;
}

template <typename T>
void LaunchPortable(const GroupedProduct& p, cudaStream_t stream) {
  if (p.kind != GroupedKind::kWgrad) {
    RowsKernel<T><<<dim3(Blocks(p.rows, kTile), Blocks(p.n(), kTile)), kThreads, 0, stream>>>(p);
    return;
  }
  const dim3 grid(Blocks(p.in, kTile), Blocks(p.out, kTile), static_cast<unsigned>(p.experts));
  if (p.result == DType::kF32) {
    WeightsKernel<T, float><<<grid, kThreads, 0, stream>>>(p);
  } else {
    WeightsKernel<T, T><<<grid, kThreads, 0, stream>>>(p);
  }
}

}  // namespace

void GroupedLinearPortable(const GroupedProduct& product, cudaStream_t stream) {
  if (product.rows == 0 && product.kind != GroupedKind::kWgrad) return;
  if (product.fp8()) return LaunchFp8(product, stream);
  WithElementType(product.operands,
                  [&](auto element) { LaunchPortable<decltype(element)>(product, stream); });
}

void OrderGroups(const std::int32_t* groups, std::int64_t experts, std::int32_t* order, cudaStream_t stream) {
  OrderKernel<<<Blocks(experts, kThreads), kThreads, 0, stream>>>(groups, static_cast<int>(experts), order);
}

}  // namespace engine::backend::cuda
