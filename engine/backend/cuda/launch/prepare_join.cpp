#include "engine/backend/cuda/kernels/join.h"
#include "engine/backend/cuda/launch/prepare.h"
#include "engine/backend/cuda/launch/prepare_checks.h"
#include "engine/backend/cuda/libraries/status.h"

namespace engine::backend::cuda {
namespace {

JoinPart PartOf(const TensorView& joined, std::int64_t first, std::int64_t count, bool shared) {
  const int rank = joined.shape.rank();
  return {.dtype = joined.dtype,
          .rows = joined.shape.elements(0, rank - 1),
          .width = joined.shape[rank - 1],
          .first = first,
          .count = count,
          .shared = shared ? joined.shape[rank - 2] : 1};
}

}  // namespace

absl::StatusOr<Enqueue> PrepareJoin(Device&, const LaunchArgs& args) {
  const TensorView y = args.outputs[0];
  const std::vector<TensorView> parts = args.inputs;
  const auto shared = static_cast<std::uint64_t>(args.instruction->attributes().Int("shared", 0));
  for (const TensorView& part : parts) RETURN_IF_ERROR(ExpectOneElementType("join", {&y, &part}));
  return [=](cudaStream_t stream, const KernelContext&) {
    std::int64_t first = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::int64_t count = parts[i].shape[y.shape.rank() - 1];
      LaunchJoin(PartOf(y, first, count, (shared >> i & 1U) != 0), parts[i].data, y.data, stream);
      first += count;
    }
    return ToStatus(cudaGetLastError(), "join");
  };
}

absl::StatusOr<Enqueue> PrepareJoinGrad(Device&, const LaunchArgs& args) {
  const TensorView dy = args.inputs[0];
  const TensorView d = args.outputs[0];
  RETURN_IF_ERROR(ExpectOneElementType("join_grad", {&dy, &d}));
  const graph::Attributes& attributes = args.instruction->attributes();
  const JoinPart at =
      PartOf(dy, attributes.Int("first"), attributes.Int("count"), attributes.Int("shared", 0) != 0);
  return [=](cudaStream_t stream, const KernelContext&) {
    LaunchJoinGrad(at, dy.data, d.data, stream);
    return ToStatus(cudaGetLastError(), "join_grad");
  };
}

}  // namespace engine::backend::cuda
