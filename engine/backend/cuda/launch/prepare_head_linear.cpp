#include "engine/backend/cuda/kernels/head_linear.h"
#include "engine/backend/cuda/launch/prepare.h"
#include "engine/backend/cuda/launch/prepare_checks.h"
#include "engine/backend/cuda/libraries/status.h"

namespace engine::backend::cuda {

absl::StatusOr<Enqueue> PrepareHeadLinear(Device&, const LaunchArgs& args) {
  const graph::Attributes& attributes = args.instruction->attributes();
  const TensorView& x = args.inputs[0];
  const TensorView& w = args.inputs[1];
  const TensorView& y = args.outputs[0];
  RETURN_IF_ERROR(ExpectOneElementType("head_linear", {&x, &w, &y}));
  const HeadLinear linear = {.dtype = x.dtype,
                             .transposed = attributes.Int("transposed", 0) != 0,
                             .rows = x.shape.elements(0, 2),
                             .heads = x.shape[2],
                             .n = w.shape[1],
                             .c = w.shape[2],
                             .x_width = x.shape[3],
                             .first = attributes.Int("first", 0),
                             .x = x.data,
                             .w = w.data,
                             .y = y.data};
  return [linear](cudaStream_t stream, const KernelContext&) {
    LaunchHeadLinear(linear, stream);
    return ToStatus(cudaGetLastError(), "head_linear");
  };
}

}  // namespace engine::backend::cuda
