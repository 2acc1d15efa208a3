#include "engine/backend/cuda/kernels/relative_bias.h"
#include "engine/backend/cuda/launch/prepare.h"
#include "engine/backend/cuda/launch/prepare_checks.h"
#include "engine/backend/cuda/libraries/status.h"

namespace engine::backend::cuda {

using graph::DistanceBuckets;

absl::StatusOr<Enqueue> PrepareRelativeBias(Device&, const LaunchArgs& args) {
  const TensorView table = args.inputs[0];
  const TensorView biases = args.outputs[0];
  RETURN_IF_ERROR(ExpectOneElementType("relative_bias", {&table, &biases}));
  const DistanceBuckets buckets = DistanceBuckets::FromAttributes(args.instruction->attributes());
  return [=](cudaStream_t stream, const KernelContext&) {
    LaunchRelativeBias(table.dtype, buckets, biases.shape[0], table.data, biases.data, stream);
    return ToStatus(cudaGetLastError(), "relative_bias");
  };
}

absl::StatusOr<Enqueue> PrepareRelativeBiasGrad(Device&, const LaunchArgs& args) {
  const TensorView d_biases = args.inputs[0];
  const TensorView d_table = args.outputs[0];
  RETURN_IF_ERROR(ExpectOneElementType("relative_bias_grad", {&d_biases}));
  RETURN_IF_ERROR(ExpectFloat("relative_bias_grad", {&d_table}));
  const DistanceBuckets buckets = DistanceBuckets::FromAttributes(args.instruction->attributes());
  return [=, accumulate = (args.accumulate & 1U) != 0](cudaStream_t stream, const KernelContext&) {
    LaunchRelativeBiasGrad(d_biases.dtype, buckets, d_biases.shape[0], d_biases.data, d_table.as<float>(),
                           accumulate, stream);
    return ToStatus(cudaGetLastError(), "relative_bias_grad");
  };
}

}  // namespace engine::backend::cuda
