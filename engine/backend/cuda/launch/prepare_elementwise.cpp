#include "engine/backend/cuda/kernels/elementwise.h"
#include "engine/backend/cuda/launch/drawn.h"
#include "engine/backend/cuda/launch/prepare.h"
#include "engine/backend/cuda/launch/prepare_checks.h"
#include "engine/backend/cuda/libraries/status.h"
#include "engine/backend/cuda/profile/column_sums.h"

namespace engine::backend::cuda {
namespace {

bool IsTanhForm(const LaunchArgs& args) { return args.instruction->attributes().Int("tanh") != 0; }

// Inputs x, dy; outputs dx[, y[, d_bias]].
absl::StatusOr<Enqueue> PrepareGeluGradient(const LaunchArgs& args, const char* op, bool again) {
  const TensorView x = args.inputs[0];
  const TensorView dy = args.inputs[1];
  const TensorView dx = args.outputs[0];
  const TensorView y = again ? args.outputs[1] : TensorView{};
  RETURN_IF_ERROR(ExpectOneElementType(op, {&x, &dy, &dx, again ? &y : &x}));
  const bool tanh_form = IsTanhForm(args);
  if (args.outputs.size() < 3) {
    return [=](cudaStream_t stream, const KernelContext&) {
      LaunchGeluGrad(x.dtype, tanh_form, x.shape.elements(), x.data, dy.data, dx.data, y.data, stream);
      return ToStatus(cudaGetLastError(), op);
    };
  }
  const TensorView d_bias = args.outputs[2];
  RETURN_IF_ERROR(ExpectFloat(op, {&d_bias}));
  const std::int64_t columns = d_bias.shape.elements();
  const std::int64_t rows = x.shape.elements() / columns;
  const std::int64_t lines = MakeShortGrid(rows, columns).chunks;
  RETURN_IF_ERROR(ExpectScratch(op, args, lines * columns * SizeOf(DType::kF32)));
  auto* partial = reinterpret_cast<float*>(args.scratch.data());
  const bool accumulate = (args.accumulate >> 2 & 1U) != 0;
  return [=](cudaStream_t stream, const KernelContext&) {
    LaunchGeluGradAgain(x.dtype, tanh_form, rows, columns, x.data, dy.data, dx.data, y.data,
                        d_bias.as<float>(), accumulate, partial, stream);
    return ToStatus(cudaGetLastError(), op);
  };
}

absl::StatusOr<Enqueue> PrepareSwigluGradient(const LaunchArgs& args, const char* op, bool again) {
  const TensorView x = args.inputs[0];
  const TensorView dy = args.inputs[1];
  const TensorView dx = args.outputs[0];
  const TensorView y = again ? args.outputs[1] : TensorView{};
  RETURN_IF_ERROR(ExpectOneElementType(op, {&x, &dy, &dx, again ? &y : &x}));
  const std::int64_t ffn = dy.shape[dy.shape.rank() - 1];
  return [=, rows = dy.shape.elements() / ffn](cudaStream_t stream, const KernelContext&) {
    LaunchSwigluGrad(x.dtype, rows, ffn, x.data, dy.data, dx.data, y.data, stream);
    return ToStatus(cudaGetLastError(), op);
  };
}

}  // namespace

absl::StatusOr<Enqueue> PrepareAdd(Device&, const LaunchArgs& args) {
  const TensorView a = args.inputs[0];
  const TensorView b = args.inputs[1];
  const TensorView y = args.outputs[0];
  RETURN_IF_ERROR(ExpectOneElementType("add", {&a, &b, &y}));
  return [=](cudaStream_t stream, const KernelContext&) {
    LaunchAdd(y.dtype, y.shape.elements(), a.data, b.data, y.data, stream);
    return ToStatus(cudaGetLastError(), "add");
  };
}

absl::StatusOr<Enqueue> PrepareBiasAdd(Device&, const LaunchArgs& args) {
  const TensorView x = args.inputs[0];
  const TensorView bias = args.inputs[1];
  const TensorView y = args.outputs[0];
  RETURN_IF_ERROR(ExpectOneElementType("bias_add", {&x, &bias, &y}));
  const std::int64_t columns = bias.shape.elements();
  return [=, rows = x.shape.elements() / columns](cudaStream_t stream, const KernelContext&) {
    LaunchBiasAdd(y.dtype, rows, columns, x.data, bias.data, y.data, stream);
    return ToStatus(cudaGetLastError(), "bias_add");
  };
}

absl::StatusOr<Enqueue> PrepareBiasGrad(Device&, const LaunchArgs& args) {
  const TensorView dy = args.inputs[0];
  const TensorView d_bias = args.outputs[0];
  RETURN_IF_ERROR(ExpectOneElementType("bias_grad", {&dy}));
  RETURN_IF_ERROR(ExpectFloat("bias_grad", {&d_bias}));
  const std::int64_t columns = d_bias.shape.elements();
  const std::int64_t rows = dy.shape.elements() / columns;
  const std::int64_t lines = MakeBiasGradGrid(rows, columns).chunks;
  RETURN_IF_ERROR(ExpectScratch("bias_grad", args, lines * columns * SizeOf(DType::kF32)));
  auto* partial = reinterpret_cast<float*>(args.scratch.data());
  const bool accumulate = (args.accumulate & 1U) != 0;
  return [=](cudaStream_t stream, const KernelContext&) {
    LaunchBiasGrad(dy.dtype, rows, columns, dy.data, d_bias.as<float>(), accumulate, partial, stream);
    return ToStatus(cudaGetLastError(), "bias_grad");
  };
}

absl::StatusOr<Enqueue> PrepareGelu(Device&, const LaunchArgs& args) {
  const TensorView x = args.inputs[0];
  const TensorView y = args.outputs[0];
  RETURN_IF_ERROR(ExpectOneElementType("gelu", {&x, &y}));
  return [=, tanh_form = IsTanhForm(args)](cudaStream_t stream, const KernelContext&) {
    LaunchGelu(x.dtype, tanh_form, x.shape.elements(), x.data, y.data, stream);
    return ToStatus(cudaGetLastError(), "gelu");
  };
}

absl::StatusOr<Enqueue> PrepareGeluGrad(Device&, const LaunchArgs& args) {
  return PrepareGeluGradient(args, "gelu_grad", false);
}
absl::StatusOr<Enqueue> PrepareGeluGradAgain(Device&, const LaunchArgs& args) {
  return PrepareGeluGradient(args, "gelu_grad_again", true);
}

absl::StatusOr<Enqueue> PrepareSwiglu(Device&, const LaunchArgs& args) {
  const TensorView x = args.inputs[0];
  const TensorView y = args.outputs[0];
  RETURN_IF_ERROR(ExpectOneElementType("swiglu", {&x, &y}));
  const std::int64_t ffn = y.shape[y.shape.rank() - 1];
  return [=, rows = y.shape.elements() / ffn](cudaStream_t stream, const KernelContext&) {
    LaunchSwiglu(x.dtype, rows, ffn, x.data, y.data, stream);
    return ToStatus(cudaGetLastError(), "swiglu");
  };
}

absl::StatusOr<Enqueue> PrepareSwigluGrad(Device&, const LaunchArgs& args) {
  return PrepareSwigluGradient(args, "swiglu_grad", false);
}
absl::StatusOr<Enqueue> PrepareSwigluGradAgain(Device&, const LaunchArgs& args) {
  return PrepareSwigluGradient(args, "swiglu_grad_again", true);
}

absl::StatusOr<Enqueue> PrepareDropout(Device&, const LaunchArgs& args) {
  const graph::Attributes& attributes = args.instruction->attributes();
  const TensorView& x = args.inputs[0];
  const TensorView& y = args.outputs[0];
  RETURN_IF_ERROR(ExpectOneElementType("dropout", {&x, &y}));
  Dropout dropout{.dtype = x.dtype, .mask = {}, .x = x.data, .y = y.data};
  ASSIGN_OR_RETURN(dropout.mask, DropoutMaskOf("dropout", x, attributes.Float("p")));
  return [dropout, name = attributes.String("stream")](cudaStream_t stream,
                                                       const KernelContext& context) mutable {
    DrawNow(name, context, &dropout.mask.drawn);
    LaunchDropout(dropout, stream);
    return ToStatus(cudaGetLastError(), "dropout");
  };
}

// Inputs dy; outputs dx, d_bias.
absl::StatusOr<Enqueue> PrepareDropoutGradBias(Device&, const LaunchArgs& args) {
  const char* const op = "dropout_grad_bias";
  const graph::Attributes& attributes = args.instruction->attributes();
  const TensorView& dy = args.inputs[0];
  const TensorView& dx = args.outputs[0];
  const TensorView& d_bias = args.outputs[1];
  RETURN_IF_ERROR(ExpectOneElementType(op, {&dy, &dx}));
  RETURN_IF_ERROR(ExpectFloat(op, {&d_bias}));
  const std::int64_t columns = d_bias.shape.elements();
  if (dy.shape[dy.shape.rank() - 1] != columns)
    return Internal("{}: {} sums of rows of {}", op, columns, dy.shape[dy.shape.rank() - 1]);
  const std::int64_t lines = MakeShortGrid(dy.shape.elements() / columns, columns).chunks;
  RETURN_IF_ERROR(ExpectScratch(op, args, lines * columns * SizeOf(DType::kF32)));
  Dropout dropout{.dtype = dy.dtype, .mask = {}, .x = dy.data, .y = dx.data};
  ASSIGN_OR_RETURN(dropout.mask, DropoutMaskOf(op, dy, attributes.Float("p")));
  auto* partial = reinterpret_cast<float*>(args.scratch.data());
  const bool accumulate = (args.accumulate >> 1U & 1U) != 0;
  return [=, sums = d_bias.as<float>(), name = attributes.String("stream")](
             cudaStream_t stream, const KernelContext& context) mutable {
    DrawNow(name, context, &dropout.mask.drawn);
    LaunchDropoutGradBias(dropout, sums, accumulate, partial, stream);
    return ToStatus(cudaGetLastError(), op);
  };
}

absl::StatusOr<Enqueue> PrepareJitter(Device&, const LaunchArgs& args) {
  const graph::Attributes& attributes = args.instruction->attributes();
  const TensorView& x = args.inputs[0];
  const TensorView& y = args.outputs[0];
  RETURN_IF_ERROR(ExpectOneElementType("jitter", {&x, &y}));
  const double eps = attributes.Float("eps");
  Jitter jitter{.dtype = x.dtype,
                .drawn = {},
                .x = x.data,
                .y = y.data,
                .least = static_cast<float>(1.0 - eps),
                .range = static_cast<float>(2.0 * eps)};
  ASSIGN_OR_RETURN(jitter.drawn, DrawnOf("jitter", x));
  return [jitter, name = attributes.String("stream")](cudaStream_t stream,
                                                      const KernelContext& context) mutable {
    DrawNow(name, context, &jitter.drawn);
    LaunchJitter(jitter, stream);
    return ToStatus(cudaGetLastError(), "jitter");
  };
}

}  // namespace engine::backend::cuda
