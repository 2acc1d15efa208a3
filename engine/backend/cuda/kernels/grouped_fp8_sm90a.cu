// The kernel of grouped_sm90a.cuh in FP8, in a file of its own, so that the two are compiled side by side.
#include "engine/backend/cuda/kernels/grouped_sm90a.cuh"

namespace engine::backend::cuda::grouped_sm90a {
namespace {

template <bool kAIsE5M2>
Kernel KernelOfFormat(const GroupedSm90a& grouped) {
  using Operands = Fp8Operands<kAIsE5M2>;
  switch (grouped.product.kind) {
    case GroupedKind::kForward:
      return KernelOfCluster<Operands, GroupedKind::kForward, __nv_bfloat16>(grouped.cluster);
    case GroupedKind::kDgrad:
      return KernelOfCluster<Operands, GroupedKind::kDgrad, __nv_bfloat16>(grouped.cluster);
    default:
      return grouped.product.result == DType::kF32
                 ? KernelOfCluster<Operands, GroupedKind::kWgrad, float>(grouped.cluster)
                 : KernelOfCluster<Operands, GroupedKind::kWgrad, __nv_bfloat16>(grouped.cluster);
  }
}

}  // namespace

Kernel Fp8KernelOf(const GroupedSm90a& grouped) {
  return grouped.product.operands == DType::kE5M2 ? KernelOfFormat<true>(grouped)
                                                  : KernelOfFormat<false>(grouped);
}

}  // namespace engine::backend::cuda::grouped_sm90a
