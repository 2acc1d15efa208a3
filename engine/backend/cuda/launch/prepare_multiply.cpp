#include "engine/backend/cuda/kernels/multiply.h"
#include "engine/backend/cuda/launch/prepare.h"
#include "engine/backend/cuda/launch/prepare_checks.h"
#include "engine/backend/cuda/libraries/status.h"

namespace engine::backend::cuda {

absl::StatusOr<Enqueue> PrepareMultiply(Device&, const LaunchArgs& args) {
  const TensorView a = args.inputs[0];
  const TensorView b = args.inputs[1];
  const TensorView y = args.outputs[0];
  RETURN_IF_ERROR(ExpectOneElementType("multiply", {&a, &b, &y}));
  return [=](cudaStream_t stream, const KernelContext&) {
    LaunchMultiply(y.dtype, y.shape.elements(), a.data, b.data, y.data, stream);
    return ToStatus(cudaGetLastError(), "multiply");
  };
}

}  // namespace engine::backend::cuda
