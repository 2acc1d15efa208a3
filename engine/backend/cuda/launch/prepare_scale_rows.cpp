#include "engine/backend/cuda/kernels/scale_rows.h"
#include "engine/backend/cuda/launch/prepare.h"
#include "engine/backend/cuda/launch/prepare_checks.h"
#include "engine/backend/cuda/libraries/status.h"

namespace engine::backend::cuda {

absl::StatusOr<Enqueue> PrepareScaleRows(Device&, const LaunchArgs& args) {
  const TensorView x = args.inputs[0];
  const TensorView s = args.inputs[1];
  const TensorView y = args.outputs[0];
  RETURN_IF_ERROR(ExpectOneElementType("scale_rows", {&x, &s, &y}));
  const std::int64_t columns = x.shape[x.shape.rank() - 1];
  const std::int64_t rows = s.shape.elements();
  return [=](cudaStream_t stream, const KernelContext&) {
    LaunchScaleRows(x.dtype, rows, columns, x.data, s.data, y.data, stream);
    return ToStatus(cudaGetLastError(), "scale_rows");
  };
}

absl::StatusOr<Enqueue> PrepareRowDot(Device&, const LaunchArgs& args) {
  const TensorView a = args.inputs[0];
  const TensorView b = args.inputs[1];
  const TensorView y = args.outputs[0];
  RETURN_IF_ERROR(ExpectOneElementType("row_dot", {&a, &b, &y}));
  const std::int64_t columns = a.shape[a.shape.rank() - 1];
  const std::int64_t rows = y.shape.elements();
  return [=](cudaStream_t stream, const KernelContext&) {
    LaunchRowDot(a.dtype, rows, columns, a.data, b.data, y.data, stream);
    return ToStatus(cudaGetLastError(), "row_dot");
  };
}

}  // namespace engine::backend::cuda
