#include "engine/backend/cuda/kernels/glu.h"
#include "engine/backend/cuda/launch/prepare.h"
#include "engine/backend/cuda/launch/prepare_checks.h"
#include "engine/backend/cuda/libraries/status.h"
#include "engine/graph/activation.h"

namespace engine::backend::cuda {
namespace {

absl::StatusOr<std::string> GateOf(const LaunchArgs& args, const char* op) {
  const std::string& kind = args.instruction->attributes().String("kind");
  if (graph::FindActivation(graph::kGateKinds, kind) != nullptr) return kind;
  return Unimplemented("{}: no CUDA kernel for a gate of kind {}", op, kind);
}

}  // namespace

absl::StatusOr<Enqueue> PrepareGlu(Device&, const LaunchArgs& args) {
  const TensorView x = args.inputs[0];
  const TensorView y = args.outputs[0];
  RETURN_IF_ERROR(ExpectOneElementType("glu", {&x, &y}));
  ASSIGN_OR_RETURN(const std::string kind, GateOf(args, "glu"));
  const std::int64_t ffn = y.shape[y.shape.rank() - 1];
  return [=, rows = y.shape.elements() / ffn](cudaStream_t stream, const KernelContext&) {
    LaunchGlu(x.dtype, kind, rows, ffn, x.data, y.data, stream);
    return ToStatus(cudaGetLastError(), "glu");
  };
}

absl::StatusOr<Enqueue> PrepareGluGrad(Device&, const LaunchArgs& args) {
  const TensorView x = args.inputs[0];
  const TensorView dy = args.inputs[1];
  const TensorView dx = args.outputs[0];
  RETURN_IF_ERROR(ExpectOneElementType("glu_grad", {&x, &dy, &dx}));
  ASSIGN_OR_RETURN(const std::string kind, GateOf(args, "glu_grad"));
  const std::int64_t ffn = dy.shape[dy.shape.rank() - 1];
  return [=, rows = dy.shape.elements() / ffn](cudaStream_t stream, const KernelContext&) {
    LaunchGluGrad(x.dtype, kind, rows, ffn, x.data, dy.data, dx.data, stream);
    return ToStatus(cudaGetLastError(), "glu_grad");
  };
}

}  // namespace engine::backend::cuda
