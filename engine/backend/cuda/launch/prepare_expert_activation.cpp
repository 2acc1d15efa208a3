#include "engine/backend/cuda/kernels/expert_activation.h"
#include "engine/backend/cuda/launch/prepare.h"
#include "engine/backend/cuda/launch/prepare_checks.h"
#include "engine/backend/cuda/libraries/status.h"
#include "engine/graph/activation.h"
#include "engine/graph/rows.h"

namespace engine::backend::cuda {
namespace {

// All but `act`, which views the attribute: it is set when the launch runs.
absl::StatusOr<ExpertActivationRows> ActivationRowsOf(const char* op, const LaunchArgs& args,
                                                      const TensorView& y) {
  const TensorView& h = args.inputs[0];
  RETURN_IF_ERROR(ExpectOneElementType(op, {&h, &y}));
  RETURN_IF_ERROR(ExpectFloat(op, {&args.inputs[1]}));
  const std::int64_t rows = h.shape[0];
  if (rows % graph::kRowAlignment != 0)
    return Internal("{}: {} rows, no multiple of {}", op, rows, graph::kRowAlignment);
  ExpertActivationRows activation;
  activation.gated = args.instruction->attributes().Int("gated") != 0;
  activation.dtype = h.dtype;
  activation.rows = rows;
  activation.ffn = y.shape[1];
  activation.h = h.data;
  activation.weight = args.inputs[1].as<float>();
  activation.choice_of = args.inputs[2].as<std::int32_t>();
  return activation;
}

absl::StatusOr<std::string> ActOf(const char* op, const LaunchArgs& args) {
  const std::string& act = args.instruction->attributes().String("act");
  if (graph::FindActivation(graph::kExpertActivations, act) != nullptr) return act;
  return Unimplemented("{}: no CUDA kernel for the activation {}", op, act);
}

// `again`: where the forward kernel's output goes; null: nobody wants it.
absl::StatusOr<Enqueue> PrepareGradient(const LaunchArgs& args, const char* op, const TensorView* again) {
  const TensorView dy = args.inputs[3];
  const TensorView dh = args.outputs[0];
  const TensorView d_weight = args.outputs[1];
  RETURN_IF_ERROR(ExpectOneElementType(op, {&dy, &dh}));
  if (again != nullptr) RETURN_IF_ERROR(ExpectOneElementType(op, {&dy, again}));
  RETURN_IF_ERROR(ExpectFloat(op, {&d_weight}));
  ASSIGN_OR_RETURN(const ExpertActivationRows rows, ActivationRowsOf(op, args, dy));
  ASSIGN_OR_RETURN(const std::string act, ActOf(op, args));
  void* const y = again != nullptr ? again->data : nullptr;
  return [=](cudaStream_t stream, const KernelContext&) {
    ExpertActivationRows now = rows;
    now.act = act;
    LaunchExpertActivationGrad(now, dy.data, dh.data, d_weight.as<float>(), d_weight.shape.elements(), y,
                               stream);
    return ToStatus(cudaGetLastError(), op);
  };
}

}  // namespace

absl::StatusOr<Enqueue> PrepareExpertActivation(Device&, const LaunchArgs& args) {
  const TensorView y = args.outputs[0];
  ASSIGN_OR_RETURN(const ExpertActivationRows rows, ActivationRowsOf("expert_activation", args, y));
  ASSIGN_OR_RETURN(const std::string act, ActOf("expert_activation", args));
  return [=](cudaStream_t stream, const KernelContext&) {
    ExpertActivationRows now = rows;
    now.act = act;
    LaunchExpertActivation(now, y.data, stream);
    return ToStatus(cudaGetLastError(), "expert_activation");
  };
}

absl::StatusOr<Enqueue> PrepareExpertActivationGrad(Device&, const LaunchArgs& args) {
  return PrepareGradient(args, "expert_activation_grad", nullptr);
}
absl::StatusOr<Enqueue> PrepareExpertActivationGradAgain(Device&, const LaunchArgs& args) {
  return PrepareGradient(args, "expert_activation_grad_again", &args.outputs[2]);
}

}  // namespace engine::backend::cuda
