#include "engine/backend/cuda/kernels/norm.h"
#include "engine/backend/cuda/launch/drawn.h"
#include "engine/backend/cuda/launch/prepare.h"
#include "engine/backend/cuda/launch/prepare_checks.h"
#include "engine/backend/cuda/libraries/status.h"
#include "engine/backend/cuda/profile/column_sums.h"

namespace engine::backend::cuda {
namespace {

// Inputs x[, branch], gamma[, beta][, bias of the branch]; outputs [sum,] y[, mean], rstd.
absl::StatusOr<Enqueue> PrepareForward(const LaunchArgs& args, const char* op, bool layer, bool add,
                                       bool drops = false) {
  const std::vector<TensorView>& in = args.inputs;
  const std::vector<TensorView>& out = args.outputs;
  const TensorView& gamma = in[add ? 2 : 1];
  const TensorView& y = out[add ? 1 : 0];
  RETURN_IF_ERROR(ExpectOneElementType(op, {&in[0], &gamma, &y}));
  if (layer) RETURN_IF_ERROR(ExpectOneElementType(op, {&in[0], &in[add ? 3 : 2]}));
  if (add) RETURN_IF_ERROR(ExpectOneElementType(op, {&in[0], &in[1], &out[0]}));
  const bool bias = layer && add && in.size() > 4;
  if (bias) RETURN_IF_ERROR(ExpectOneElementType(op, {&in[0], &in[4]}));
  const TensorView& rstd = out.back();
  RETURN_IF_ERROR(ExpectFloat(op, {&rstd}));
  if (layer) RETURN_IF_ERROR(ExpectFloat(op, {&out[out.size() - 2]}));

  const bool held = add && args.instruction->AddedInput() == 1 && HoldsNormRows(gamma.shape.elements());
  if (!args.part.empty() && !held) return Internal("{}: adds a part to no branch held in registers", op);
  Norm norm{.dtype = in[0].dtype,
            .rows = rstd.shape.elements(),
            .columns = gamma.shape.elements(),
            .epsilon = static_cast<float>(args.instruction->attributes().Float("epsilon")),
            .gain_offset = GainOffsetOf(args),
            .x = in[0].data,
            .branch = add ? in[1].data : nullptr,
            .part = nullptr,
            .bias = bias ? in[4].data : nullptr,
            .dropout = {},
            .gamma = gamma.data,
            .beta = layer ? in[add ? 3 : 2].data : nullptr,
            .sum = add ? out[0].data : nullptr,
            .y = y.data,
            .mean = layer ? out[out.size() - 2].as<float>() : nullptr,
            .rstd = rstd.as<float>()};
  std::string draws;  // their stream; empty: there is no dropout
  if (drops) {
    ASSIGN_OR_RETURN(norm.dropout, DropoutMaskOf(op, in[1], args.instruction->attributes().Float("p")));
    if (!HasWholeRows(norm.dropout.drawn.index) || in[1].shape[in[1].shape.rank() - 1] != norm.columns)
      return Unimplemented("{}: dropout of rows that are not here as a whole", op);
    draws = args.instruction->attributes().String("stream");
  }
  return [norm, op, args, draws](cudaStream_t stream, const KernelContext& context) mutable {
    norm.part = args.PartAddress();
    if (!draws.empty()) DrawNow(draws, context, &norm.dropout.drawn);
    LaunchNorm(norm, stream);
    return ToStatus(cudaGetLastError(), op);
  };
}

// Inputs dy, x, gamma[, mean], rstd[, residual][, beta]; outputs dx, d_gamma[, d_beta][, d_bias][, y]. y
// comes with the attribute `again`, and brings beta with it where there is one.
absl::StatusOr<Enqueue> PrepareBackward(const LaunchArgs& args, const char* op, bool layer, bool add) {
  const std::vector<TensorView>& in = args.inputs;
  const std::vector<TensorView>& out = args.outputs;
  const size_t inputs = layer ? 5 : 4;  // without residual and beta
  const size_t sums = layer ? 2 : 1;    // without d_bias
  const bool again = add && args.instruction->attributes().Int("again", 0) != 0;
  const bool bias = add && out.size() > 1 + sums + (again ? 1 : 0);
  const size_t all_sums = sums + (bias ? 1 : 0);
  if (in.size() != inputs + (add ? 1 : 0) + (again && layer ? 1 : 0) ||
      out.size() != 1 + all_sums + (again ? 1 : 0)) {
    return Internal("{}: {} inputs and {} outputs", op, in.size(), out.size());
  }
  const TensorView& rstd = in[inputs - 1];
  RETURN_IF_ERROR(ExpectOneElementType(op, {&in[0], &in[1], &in[2], &out[0]}));
  if (add) RETURN_IF_ERROR(ExpectOneElementType(op, {&in[0], &in[inputs]}));
  if (again) RETURN_IF_ERROR(ExpectOneElementType(op, {&in[0], &in.back(), &out.back()}));
  RETURN_IF_ERROR(ExpectFloat(op, {&in[3], &rstd}));
  for (size_t i = 1; i <= all_sums; ++i) RETURN_IF_ERROR(ExpectFloat(op, {&out[i]}));

  const auto accumulates = [&](size_t output) { return (args.accumulate >> output & 1U) != 0; };
  const bool narrow = MakeNormGradGrid(rstd.shape.elements(), in[2].shape.elements()).vectors == 1;
  if (!args.part.empty() && (!add || again || !narrow || args.instruction->AddedInput() != 0))
    return Internal("{}: adds a part to no dy of one vector a thread", op);
  NormGrad grad{.dtype = in[0].dtype,
                .rows = rstd.shape.elements(),
                .columns = in[2].shape.elements(),
                .gain_offset = GainOffsetOf(args),
                .dy = in[0].data,
                .part = nullptr,
                .x = in[1].data,
                .gamma = in[2].data,
                .mean = layer ? in[3].as<const float>() : nullptr,
                .rstd = rstd.as<const float>(),
                .residual = add ? in[inputs].data : nullptr,
                .beta = again && layer ? in.back().data : nullptr,
                .dx = out[0].data,
                .y = again ? out.back().data : nullptr,
                .d_gamma = out[1].as<float>(),
                .d_beta = layer ? out[2].as<float>() : nullptr,
                .d_bias = bias ? out[1 + sums].as<float>() : nullptr,
                .accumulate_gamma = accumulates(1),
                .accumulate_beta = layer && accumulates(2),
                .accumulate_bias = bias && accumulates(1 + sums),
                .partial = reinterpret_cast<float*>(args.scratch.data())};
  const std::int64_t lines = MakeNormGradGrid(grad.rows, grad.columns).blocks;
  RETURN_IF_ERROR(ExpectScratch(
      op, args, lines * static_cast<std::int64_t>(all_sums) * grad.columns * SizeOf(DType::kF32)));
  return [grad, op, args](cudaStream_t stream, const KernelContext&) mutable {
    grad.part = args.PartAddress();
    LaunchNormGrad(grad, stream);
    return ToStatus(cudaGetLastError(), op);
  };
}

}  // namespace

absl::StatusOr<Enqueue> PrepareLayerNorm(Device&, const LaunchArgs& args) {
  return PrepareForward(args, "layer_norm", true, false);
}
absl::StatusOr<Enqueue> PrepareAddLayerNorm(Device&, const LaunchArgs& args) {
  return PrepareForward(args, "add_layer_norm", true, true);
}
absl::StatusOr<Enqueue> PrepareAddDropoutLayerNorm(Device&, const LaunchArgs& args) {
  return PrepareForward(args, "add_dropout_layer_norm", true, true, true);
}
absl::StatusOr<Enqueue> PrepareLayerNormGrad(Device&, const LaunchArgs& args) {
  return PrepareBackward(args, "layer_norm_grad", true, false);
}
absl::StatusOr<Enqueue> PrepareLayerNormGradAdd(Device&, const LaunchArgs& args) {
  return PrepareBackward(args, "layer_norm_grad_add", true, true);
}
absl::StatusOr<Enqueue> PrepareRmsNorm(Device&, const LaunchArgs& args) {
  return PrepareForward(args, "rms_norm", false, false);
}
absl::StatusOr<Enqueue> PrepareAddRmsNorm(Device&, const LaunchArgs& args) {
  return PrepareForward(args, "add_rms_norm", false, true);
}
absl::StatusOr<Enqueue> PrepareAddDropoutRmsNorm(Device&, const LaunchArgs& args) {
  return PrepareForward(args, "add_dropout_rms_norm", false, true, true);
}
absl::StatusOr<Enqueue> PrepareRmsNormGrad(Device&, const LaunchArgs& args) {
  return PrepareBackward(args, "rms_norm_grad", false, false);
}
absl::StatusOr<Enqueue> PrepareRmsNormGradAdd(Device&, const LaunchArgs& args) {
  return PrepareBackward(args, "rms_norm_grad_add", false, true);
}

}  // namespace engine::backend::cuda
