#include "engine/backend/cuda/kernels/scale.h"
#include "engine/backend/cuda/launch/prepare.h"
#include "engine/backend/cuda/launch/prepare_checks.h"
#include "engine/backend/cuda/libraries/status.h"

namespace engine::backend::cuda {

absl::StatusOr<Enqueue> PrepareScale(Device&, const LaunchArgs& args) {
  const TensorView x = args.inputs[0];
  const TensorView y = args.outputs[0];
  RETURN_IF_ERROR(ExpectOneElementType("scale", {&x, &y}));
  const auto by = static_cast<float>(args.instruction->attributes().Float("by"));
  return [=](cudaStream_t stream, const KernelContext&) {
    LaunchScale(x.dtype, by, x.shape.elements(), x.data, y.data, stream);
    return ToStatus(cudaGetLastError(), "scale");
  };
}

}  // namespace engine::backend::cuda
