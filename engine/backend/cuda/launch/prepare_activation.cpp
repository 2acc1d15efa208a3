#include "engine/backend/cuda/kernels/activation.h"
#include "engine/backend/cuda/launch/prepare.h"
#include "engine/backend/cuda/launch/prepare_checks.h"
#include "engine/backend/cuda/libraries/status.h"
#include "engine/graph/activation.h"

namespace engine::backend::cuda {
namespace {

absl::StatusOr<std::string> KindOf(const LaunchArgs& args, const char* op) {
  const std::string& kind = args.instruction->attributes().String("kind");
  if (graph::FindActivation(graph::kActivationKinds, kind) != nullptr) return kind;
  return Unimplemented("{}: no CUDA kernel for kind {}", op, kind);
}

}  // namespace

absl::StatusOr<Enqueue> PrepareActivation(Device&, const LaunchArgs& args) {
  const TensorView x = args.inputs[0];
  const TensorView y = args.outputs[0];
  RETURN_IF_ERROR(ExpectOneElementType("activation", {&x, &y}));
  ASSIGN_OR_RETURN(const std::string kind, KindOf(args, "activation"));
  return [=](cudaStream_t stream, const KernelContext&) {
    LaunchActivation(x.dtype, kind, x.shape.elements(), x.data, y.data, stream);
    return ToStatus(cudaGetLastError(), "activation");
  };
}

absl::StatusOr<Enqueue> PrepareActivationGrad(Device&, const LaunchArgs& args) {
  const TensorView x = args.inputs[0];
  const TensorView dy = args.inputs[1];
  const TensorView dx = args.outputs[0];
  RETURN_IF_ERROR(ExpectOneElementType("activation_grad", {&x, &dy, &dx}));
  ASSIGN_OR_RETURN(const std::string kind, KindOf(args, "activation_grad"));
  return [=](cudaStream_t stream, const KernelContext&) {
    LaunchActivationGrad(x.dtype, kind, x.shape.elements(), x.data, dy.data, dx.data, stream);
    return ToStatus(cudaGetLastError(), "activation_grad");
  };
}

}  // namespace engine::backend::cuda
