#include "engine/backend/cuda/kernels/softcap.h"
#include "engine/backend/cuda/launch/prepare.h"
#include "engine/backend/cuda/launch/prepare_checks.h"
#include "engine/backend/cuda/libraries/status.h"

namespace engine::backend::cuda {

absl::StatusOr<Enqueue> PrepareSoftcap(Device&, const LaunchArgs& args) {
  const TensorView x = args.inputs[0];
  const TensorView y = args.outputs[0];
  RETURN_IF_ERROR(ExpectOneElementType("softcap", {&x, &y}));
  const auto cap = static_cast<float>(args.instruction->attributes().Float("cap"));
  return [=](cudaStream_t stream, const KernelContext&) {
    LaunchSoftcap(x.dtype, cap, x.shape.elements(), x.data, y.data, stream);
    return ToStatus(cudaGetLastError(), "softcap");
  };
}

absl::StatusOr<Enqueue> PrepareSoftcapGrad(Device&, const LaunchArgs& args) {
  const TensorView y = args.inputs[0];
  const TensorView dy = args.inputs[1];
  const TensorView dx = args.outputs[0];
  RETURN_IF_ERROR(ExpectOneElementType("softcap_grad", {&y, &dy, &dx}));
  const auto cap = static_cast<float>(args.instruction->attributes().Float("cap"));
  return [=](cudaStream_t stream, const KernelContext&) {
    LaunchSoftcapGrad(y.dtype, cap, y.shape.elements(), y.data, dy.data, dx.data, stream);
    return ToStatus(cudaGetLastError(), "softcap_grad");
  };
}

}  // namespace engine::backend::cuda
