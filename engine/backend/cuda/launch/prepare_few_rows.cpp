// Products of few rows with what stands before and behind them, in one kernel. x[M, I], w[O, I], y[M, O].
#include <optional>

#include "engine/backend/cuda/kernels/few_rows.h"
#include "engine/backend/cuda/launch/prepare.h"
#include "engine/backend/cuda/launch/prepare_checks.h"
#include "engine/backend/cuda/libraries/status.h"
#include "engine/graph/activation.h"

namespace engine::backend::cuda {
namespace {

// Describes the product of inputs 0 (x) and 1 (w) and, where it is not null, of a bias. Error: it is not one of few rows.
absl::StatusOr<FewRows> ExpectFewRows(const char* op, const LaunchArgs& args, const TensorView* bias) {
  const TensorView& x = args.inputs[0];
  const TensorView& w = args.inputs[1];
  const TensorView& y = args.outputs[0];
  RETURN_IF_ERROR(ExpectOneElementType(op, {&x, &w}));
  if (bias != nullptr) RETURN_IF_ERROR(ExpectOneElementType(op, {&x, &y, bias}));
  const int in_dims = static_cast<int>(args.instruction->attributes().Int("in_dims"));
  FewRows product = {.dtype = x.dtype,
                     .made = y.dtype,
                     .terms = w.shape.elements(w.shape.rank() - in_dims, w.shape.rank()),
                     .x = x.data,
                     .w = w.data,
                     .bias = bias == nullptr ? nullptr : bias->data,
                     .y = y.data,
                     .w_stays = (args.constant_inputs & 0b10U) != 0};
  product.rows = x.shape.elements() / product.terms;
  product.columns = y.shape.elements() / product.rows;
  if (!IsFewRows(x.dtype, y.dtype, product.rows, product.terms)) {
    return Internal("{}: {} of {} rows of {} terms is no product of few rows", op, Name(x.dtype),
                    product.rows, product.terms);
  }
  return product;
}

Enqueue EnqueueFusedRows(const char* op, const FewRows& product) {
  return [op, product](cudaStream_t stream, const KernelContext&) -> absl::Status {
    LaunchFewRows(product, stream);
    return ToStatus(cudaGetLastError(), op);
  };
}

absl::Status SetGate(const char* op, const LaunchArgs& args, FewRows* product) {
  const graph::Attributes& attributes = args.instruction->attributes();
  RETURN_IF_ERROR(ExpectOneElementType(op, {&args.inputs[0], &args.outputs[0]}));
  product->gated = true;
  product->activation = graph::Activation::kSilu;
  if (!attributes.Has("kind")) return absl::OkStatus();
  const std::string& kind = attributes.String("kind");
  const graph::ActivationKind* const found = graph::FindActivation(graph::kGateKinds, kind);
  if (found == nullptr) return Unimplemented("{}: no CUDA kernel for a gate of kind {}", op, kind);
  product->activation = found->activation;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Enqueue> PrepareLinearGated(Device&, const LaunchArgs& args) {
  constexpr const char* kOp = "linear_gated";
  const TensorView* const bias = args.inputs.size() > 2 ? &args.inputs[2] : nullptr;
  ASSIGN_OR_RETURN(FewRows product, ExpectFewRows(kOp, args, bias));
  RETURN_IF_ERROR(SetGate(kOp, args, &product));
  return EnqueueFusedRows(kOp, product);
}

absl::StatusOr<Enqueue> PrepareLinearResidual(Device&, const LaunchArgs& args) {
  constexpr const char* kOp = "linear_residual";
  const TensorView* const bias = args.inputs.size() > 3 ? &args.inputs[3] : nullptr;
  ASSIGN_OR_RETURN(FewRows product, ExpectFewRows(kOp, args, bias));
  RETURN_IF_ERROR(ExpectOneElementType(kOp, {&args.inputs[2], &args.outputs[0]}));
  product.c = args.inputs[2].data;
  return EnqueueFusedRows(kOp, product);
}

absl::StatusOr<Enqueue> PrepareNormLinear(Device&, const LaunchArgs& args) {
  constexpr const char* kOp = "norm_linear";
  constexpr std::size_t kGamma = 2;
  const graph::Attributes& attributes = args.instruction->attributes();
  const bool layer = attributes.Int("layer", 0) != 0;
  const std::size_t behind_norm = kGamma + (layer ? 2 : 1);
  const TensorView* const bias = args.inputs.size() > behind_norm ? &args.inputs[behind_norm] : nullptr;
  ASSIGN_OR_RETURN(FewRows product, ExpectFewRows(kOp, args, bias));
  const TensorView& x = args.inputs[0];
  const TensorView& gamma = args.inputs[kGamma];
  const TensorView& beta = args.inputs[behind_norm - 1];
  RETURN_IF_ERROR(ExpectOneElementType(kOp, {&x, &gamma, &beta}));
  if (x.shape.elements() > kMostNormedElements || gamma.shape.elements() != product.terms ||
      beta.shape.elements() != product.terms) {
    return Internal("{}: no norm of {} rows of {} terms", kOp, product.rows, product.terms);
  }
  product.gamma = gamma.data;
  if (layer) product.beta = beta.data;
  product.epsilon = static_cast<float>(attributes.Float("epsilon"));
  product.gain_offset = GainOffsetOf(args);
  const std::uint32_t gain = layer ? 0b1100U : 0b100U;
  product.gain_stays = (args.constant_inputs & gain) == gain;
  if (attributes.Int("gate", 0) != 0) RETURN_IF_ERROR(SetGate(kOp, args, &product));
  if (attributes.Int("gelu", 0) != 0) {
    const bool tanh = attributes.Int("tanh", 1) == 1;
    product.activation = tanh ? graph::Activation::kGeluTanh : graph::Activation::kGeluErf;
  }
  return EnqueueFusedRows(kOp, product);
}

}  // namespace engine::backend::cuda
