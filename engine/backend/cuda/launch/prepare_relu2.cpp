#include "engine/backend/cuda/kernels/relu2.h"
#include "engine/backend/cuda/launch/prepare.h"
#include "engine/backend/cuda/launch/prepare_checks.h"
#include "engine/backend/cuda/libraries/status.h"

namespace engine::backend::cuda {

absl::StatusOr<Enqueue> PrepareRelu2(Device&, const LaunchArgs& args) {
  const TensorView x = args.inputs[0];
  const TensorView y = args.outputs[0];
  RETURN_IF_ERROR(ExpectOneElementType("relu2", {&x, &y}));
  return [=](cudaStream_t stream, const KernelContext&) {
    LaunchRelu2(x.dtype, x.shape.elements(), x.data, y.data, stream);
    return ToStatus(cudaGetLastError(), "relu2");
  };
}

absl::StatusOr<Enqueue> PrepareRelu2Grad(Device&, const LaunchArgs& args) {
  const TensorView x = args.inputs[0];
  const TensorView dy = args.inputs[1];
  const TensorView dx = args.outputs[0];
  RETURN_IF_ERROR(ExpectOneElementType("relu2_grad", {&x, &dy, &dx}));
  return [=](cudaStream_t stream, const KernelContext&) {
    LaunchRelu2Grad(x.dtype, x.shape.elements(), x.data, dy.data, dx.data, stream);
    return ToStatus(cudaGetLastError(), "relu2_grad");
  };
}

}  // namespace engine::backend::cuda
