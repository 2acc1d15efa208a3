// The kernel of grouped_sm90a.cuh in bf16, and how it is launched.
#include "engine/backend/cuda/kernels/grouped_sm90a.h"

#include "engine/backend/cuda/kernels/grouped_sm90a.cuh"

namespace engine::backend::cuda {
namespace {

using grouped_sm90a::Bf16Operands;
using grouped_sm90a::Kernel;
using grouped_sm90a::KernelOfCluster;
using grouped_sm90a::kRowBytes;
using grouped_sm90a::kTileM;
using grouped_sm90a::Sizes;

Kernel KernelOf(const GroupedSm90a& grouped) {
  if (grouped.product.fp8()) return grouped_sm90a::Fp8KernelOf(grouped);
  switch (grouped.product.kind) {
    case GroupedKind::kForward:
      return KernelOfCluster<Bf16Operands, GroupedKind::kForward, __nv_bfloat16>(grouped.cluster);
    case GroupedKind::kDgrad:
      return KernelOfCluster<Bf16Operands, GroupedKind::kDgrad, __nv_bfloat16>(grouped.cluster);
    default:
      return grouped.product.result == DType::kF32
                 ? KernelOfCluster<Bf16Operands, GroupedKind::kWgrad, float>(grouped.cluster)
                 : KernelOfCluster<Bf16Operands, GroupedKind::kWgrad, __nv_bfloat16>(grouped.cluster);
  }
}

Sizes SizesOf(const GroupedSm90a& grouped) {
  const GroupedProduct& product = grouped.product;
  const bool forward = product.kind == GroupedKind::kForward;
  return {.experts = static_cast<int>(product.experts),
          .m = static_cast<int>(product.out),
          .n = static_cast<int>(product.n()),
          .k = static_cast<int>(forward ? product.in : product.out),
          .accumulate = product.accumulate,
          .groups = reinterpret_cast<const int2*>(product.groups),
          .order = grouped.order,
          .a_unit = product.a_unit,
          .b_unit = product.b_unit};
}

}  // namespace

bool HasGroupedSm90a() {
#ifdef ENGINE_SM90A
  return true;
#else
  return false;
#endif
}

GroupedBoxes GroupedBoxesOf(const GroupedProduct& product) {
  const bool fp8 = product.fp8();
  const auto inner = static_cast<std::uint32_t>(kRowBytes / SizeOf(product.operands));
  GroupedBoxes boxes;
  boxes.a = {inner, !fp8 && product.kind == GroupedKind::kWgrad ? 64U : kTileM};
  boxes.b = {inner, fp8 || product.kind == GroupedKind::kForward ? 128U : Bf16Operands::kBlockK};
  if (fp8 && product.kind == GroupedKind::kDgrad) boxes.b = {inner, 1, 128};
  boxes.d = {static_cast<std::uint32_t>(kRowBytes / SizeOf(product.result)), grouped_sm90a::kRowsOfWarp};
  return boxes;
}

int GroupedClusterOf(const GroupedProduct& product) {
  // Measured on an H200: with 8192 rows an expert two blocks are faster by a tenth, with 2048 by nothing, as half of the
  // groups have an odd number of tiles.
  constexpr std::int64_t kRowsForTwo = 2048;
  if (product.kind != GroupedKind::kWgrad) return product.rows / product.experts >= kRowsForTwo ? 2 : 1;
  constexpr std::int64_t kManyTiles = 8;  // of which one that is idle does not matter
  const std::int64_t tiles = (product.out + kTileM - 1) / kTileM;
  return tiles % 2 == 0 || tiles > kManyTiles ? 2 : 1;
}

cudaError_t AllowGroupedSm90a(const GroupedSm90a& grouped) {
  return cudaFuncSetAttribute(KernelOf(grouped), cudaFuncAttributeMaxDynamicSharedMemorySize,
                              grouped_sm90a::kSharedBytes);
}

cudaError_t LaunchGroupedSm90a(const GroupedSm90a& grouped, cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(grouped.cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(grouped.multiprocessors / grouped.cluster * grouped.cluster);
  config.blockDim = grouped_sm90a::kThreads;
  config.dynamicSmemBytes = grouped_sm90a::kSharedBytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, KernelOf(grouped), grouped.a, grouped.b, grouped.d, SizesOf(grouped));
}

}  // namespace engine::backend::cuda
