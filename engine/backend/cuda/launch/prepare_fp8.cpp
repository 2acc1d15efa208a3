#include "engine/backend/cuda/launch/prepare.h"

#include <cmath>

#include "engine/backend/cuda/device/device.h"
#include "engine/backend/cuda/gemm/gemm.h"
#include "engine/backend/cuda/gemm/gemm_tuner.h"
#include "engine/backend/cuda/kernels/quantize.h"
#include "engine/backend/cuda/launch/prepare_checks.h"
#include "engine/backend/cuda/profile/quantize_grid.h"

namespace engine::backend::cuda {
namespace {

bool IsFp8(DType dtype) { return dtype == DType::kE4M3 || dtype == DType::kE5M2; }

bool Accumulates(const LaunchArgs& args, size_t output) { return (args.accumulate >> output & 1U) != 0; }

absl::Status ExpectState(std::string_view op, const TensorView& state) {
  RETURN_IF_ERROR(ExpectFloat(op, {&state}));
  if (state.shape.elements() != kFp8StateSize) {
    return Internal("{}: a state of {} numbers, {} are due", op, state.shape.elements(), kFp8StateSize);
  }
  // cuBLASLt's heuristic accepts scales that are not on a 16-byte boundary, and the launch then fails.
  if (reinterpret_cast<std::uintptr_t>(state.data) % 16 != 0) {
    return Internal("{}: a state that is not on a 16-byte boundary", op);
  }
  return absl::OkStatus();
}

absl::Status ExpectNarrow(std::string_view op, std::initializer_list<const TensorView*> views) {
  RETURN_IF_ERROR(ExpectOneElementType(op, views));
  const DType dtype = (*views.begin())->dtype;
  if (dtype == DType::kF32) return Unimplemented("{}: quantises bf16 and f16, not f32", op);
  return absl::OkStatus();
}

absl::Status ExpectElements(std::string_view op, const TensorView& view, std::int64_t elements) {
  if (view.shape.elements() == elements) return absl::OkStatus();
  return Internal("{}: a tensor of {} elements where {} are due", op, view.shape.elements(), elements);
}

// q [rows, columns], null if it is not wanted, and qt [columns, rows].
absl::StatusOr<Fp8Output> MakeOutput(std::string_view op, const LaunchArgs& args, const TensorView* q,
                                     const TensorView& qt, const TensorView& state, std::int64_t rows,
                                     std::int64_t columns) {
  if (!IsFp8(qt.dtype) || (q != nullptr && qt.dtype != q->dtype)) {
    return Internal("{}: {} and {} where one FP8 type is due", op, Name(q != nullptr ? q->dtype : qt.dtype),
                    Name(qt.dtype));
  }
  const DType format = args.instruction->attributes().Int("format", 0) == 1 ? DType::kE5M2 : DType::kE4M3;
  if (qt.dtype != format)
    return Internal("{}: {} by its format, {} by its output", op, Name(format), Name(qt.dtype));
  if (rows % kFp8Multiple != 0 || columns % kFp8Multiple != 0) {
    return Unimplemented("{}: FP8 products take multiples of {} rows and columns, not {} rows of {} columns",
                         op, kFp8Multiple, rows, columns);
  }
  if (q != nullptr) RETURN_IF_ERROR(ExpectElements(op, *q, rows * columns));
  RETURN_IF_ERROR(ExpectElements(op, qt, rows * columns));
  RETURN_IF_ERROR(ExpectState(op, state));
  return Fp8Output{
      .format = format, .q = q != nullptr ? q->data : nullptr, .qt = qt.data, .state = state.as<float>()};
}

// Inputs a[, b], scales; outputs q, qt[, d_bias]. current: inputs a; outputs q, qt, scales[, d_bias]. The
// last `dims` dims of q are its columns. of_experts: a's groups follow it.
absl::StatusOr<Enqueue> PrepareSource(const LaunchArgs& args, const char* op, Fp8Source source,
                                      bool current = false, bool of_experts = false) {
  const std::vector<TensorView>& in = args.inputs;
  const std::vector<TensorView>& out = args.outputs;
  const bool two = !of_experts && in.size() == 3;
  const size_t bias_output = current ? 3 : 2;
  RETURN_IF_ERROR(ExpectNarrow(op, {&in[0], two ? &in[1] : &in[0]}));
  const Shape& q = out[0].shape;
  const int lead = q.rank() - static_cast<int>(args.instruction->attributes().Int("dims", 1));
  Quantize quantize{.source = source,
                    .dtype = in[0].dtype,
                    .rows = q.elements(0, lead),
                    .columns = q.elements(lead, q.rank()),
                    .a = in[0].data,
                    .b = two ? in[1].data : nullptr,
                    .current = current};
  ASSIGN_OR_RETURN(quantize.out, MakeOutput(op, args, &out[0], out[1], current ? out[2] : in.back(),
                                            quantize.rows, quantize.columns));
  if (of_experts) {
    const TensorView& groups = in[1];
    if (groups.dtype != DType::kI32 || groups.shape.elements() < 2)
      return Internal("{}: groups {} of {}", op, groups.shape.ToString(), Name(groups.dtype));
    quantize.last_group = groups.as<std::int32_t>() + groups.shape.elements() - 2;
  }
  const std::int64_t elements = quantize.rows * quantize.columns;
  const bool grad = source == Fp8Source::kSwigluGrad;
  RETURN_IF_ERROR(ExpectElements(op, in[0], source == Fp8Source::kSwiglu ? 2 * elements : elements));
  if (two) RETURN_IF_ERROR(ExpectElements(op, in[1], grad ? elements / 2 : elements));
  if (grad && quantize.columns / 2 % kFp8Multiple != 0) {
    return Unimplemented("{}: FP8 products take a multiple of {} columns, not {}", op, kFp8Multiple,
                         quantize.columns / 2);
  }
  if (out.size() > bias_output) {
    RETURN_IF_ERROR(ExpectFloat(op, {&out[bias_output]}));
    RETURN_IF_ERROR(ExpectElements(op, out[bias_output], quantize.columns));
    RETURN_IF_ERROR(
        ExpectScratch(op, args, QuantizeLines(quantize.rows) * quantize.columns * SizeOf(DType::kF32)));
    quantize.d_bias = out[bias_output].as<float>();
    quantize.accumulate_bias = Accumulates(args, bias_output);
    quantize.partial = reinterpret_cast<float*>(args.scratch.data());
  }
  return [quantize, op](cudaStream_t stream, const KernelContext&) {
    LaunchQuantize(quantize, stream);
    return ToStatus(cudaGetLastError(), op);
  };
}

// Inputs x, gamma[, beta, mean], rstd, scales; output qt.
absl::StatusOr<Enqueue> PrepareNormAgain(const LaunchArgs& args, const char* op, bool layer) {
  const std::vector<TensorView>& in = args.inputs;
  const TensorView& beta = in[layer ? 2 : 1];
  const TensorView& rstd = in[layer ? 4 : 2];
  const TensorView& mean = layer ? in[3] : rstd;
  RETURN_IF_ERROR(ExpectNarrow(op, {&in[0], &in[1], &beta}));
  RETURN_IF_ERROR(ExpectFloat(op, {&mean, &rstd}));
  Quantize quantize{.source = Fp8Source::kNorm,
                    .dtype = in[0].dtype,
                    .rows = rstd.shape.elements(),
                    .columns = in[1].shape.elements(),
                    .a = in[0].data,
                    .gamma = in[1].data,
                    .gain_offset = GainOffsetOf(args),
                    .beta = layer ? beta.data : nullptr,
                    .mean = layer ? mean.as<const float>() : nullptr,
                    .rstd = rstd.as<const float>()};
  RETURN_IF_ERROR(ExpectElements(op, in[0], quantize.rows * quantize.columns));
  ASSIGN_OR_RETURN(quantize.out, MakeOutput(op, args, nullptr, args.outputs[0], in.back(), quantize.rows,
                                            quantize.columns));
  return [quantize, op](cudaStream_t stream, const KernelContext&) {
    LaunchQuantize(quantize, stream);
    return ToStatus(cudaGetLastError(), op);
  };
}

absl::Status ExpectTanhGelu(const LaunchArgs& args, const char* op) {
  if (args.instruction->attributes().Int("tanh", 1) == 1) return absl::OkStatus();
  return Unimplemented("{}: only the tanh form of gelu, this one is the erf form", op);
}

// Inputs x, branch, gamma[, beta], scales; outputs sum, q, qt[, mean], rstd.
absl::StatusOr<Enqueue> PrepareNorm(const LaunchArgs& args, const char* op, bool layer) {
  const std::vector<TensorView>& in = args.inputs;
  const std::vector<TensorView>& out = args.outputs;
  const TensorView& beta = in[layer ? 3 : 2];
  const TensorView& mean = out[out.size() - 2];
  const TensorView& rstd = out.back();
  RETURN_IF_ERROR(ExpectNarrow(op, {&in[0], &in[1], &in[2], &beta, &out[0]}));
  RETURN_IF_ERROR(ExpectFloat(op, {&rstd, layer ? &mean : &rstd}));
  Norm norm{.dtype = in[0].dtype,
            .rows = rstd.shape.elements(),
            .columns = in[2].shape.elements(),
            .epsilon = static_cast<float>(args.instruction->attributes().Float("epsilon")),
            .gain_offset = GainOffsetOf(args),
            .x = in[0].data,
            .branch = in[1].data,
            .dropout = {},
            .gamma = in[2].data,
            .beta = layer ? beta.data : nullptr,
            .sum = out[0].data,
            .y = args.scratch.data(),
            .mean = layer ? mean.as<float>() : nullptr,
            .rstd = rstd.as<float>()};
  ASSIGN_OR_RETURN(const Fp8Output q,
                   MakeOutput(op, args, &out[1], out[2], in.back(), norm.rows, norm.columns));
  if (!NormFitsStrip(norm.columns)) {
    RETURN_IF_ERROR(ExpectScratch(op, args, norm.rows * norm.columns * SizeOf(norm.dtype)));
  }
  return [norm, q, op](cudaStream_t stream, const KernelContext&) {
    LaunchNormQuantize(norm, q, stream);
    return ToStatus(cudaGetLastError(), op);
  };
}

// Inputs dy, x, gamma[, mean], rstd, residual, scales; outputs dx, q, qt, d_gamma[, d_beta][, d_bias].
absl::StatusOr<Enqueue> PrepareNormGrad(const LaunchArgs& args, const char* op, bool layer) {
  const std::vector<TensorView>& in = args.inputs;
  const std::vector<TensorView>& out = args.outputs;
  constexpr size_t kFirstSum = 3;
  const size_t bias_output = kFirstSum + (layer ? 2 : 1);
  const bool bias = out.size() > bias_output;
  const TensorView& rstd = in[layer ? 4 : 3];
  const TensorView& residual = in[in.size() - 2];
  RETURN_IF_ERROR(ExpectNarrow(op, {&in[0], &in[1], &in[2], &residual, &out[0]}));
  RETURN_IF_ERROR(ExpectFloat(op, {&in[3], &rstd}));
  for (size_t i = kFirstSum; i < out.size(); ++i) RETURN_IF_ERROR(ExpectFloat(op, {&out[i]}));
  NormGrad grad{.dtype = in[0].dtype,
                .rows = rstd.shape.elements(),
                .columns = in[2].shape.elements(),
                .gain_offset = GainOffsetOf(args),
                .dy = in[0].data,
                .x = in[1].data,
                .gamma = in[2].data,
                .mean = layer ? in[3].as<const float>() : nullptr,
                .rstd = rstd.as<const float>(),
                .residual = residual.data,
                .beta = nullptr,
                .dx = out[0].data,
                .y = nullptr,
                .d_gamma = out[kFirstSum].as<float>(),
                .d_beta = layer ? out[kFirstSum + 1].as<float>() : nullptr,
                .d_bias = bias ? out[bias_output].as<float>() : nullptr,
                .accumulate_gamma = Accumulates(args, kFirstSum),
                .accumulate_beta = layer && Accumulates(args, kFirstSum + 1),
                .accumulate_bias = bias && Accumulates(args, bias_output),
                .partial = reinterpret_cast<float*>(args.scratch.data())};
  ASSIGN_OR_RETURN(const Fp8Output q,
                   MakeOutput(op, args, &out[1], out[2], in.back(), grad.rows, grad.columns));
  const std::int64_t lines = NormGradQuantizeLines(grad.rows, grad.columns);
  const auto sums = static_cast<std::int64_t>(out.size() - kFirstSum);
  RETURN_IF_ERROR(ExpectScratch(op, args, lines * sums * grad.columns * SizeOf(DType::kF32)));
  return [grad, q, op](cudaStream_t stream, const KernelContext&) {
    LaunchNormGradQuantize(grad, q, stream);
    return ToStatus(cudaGetLastError(), op);
  };
}

absl::StatusOr<cudaDataType> ToFp8Type(const TensorView& view) {
  if (view.dtype == DType::kE4M3) return CUDA_R_8F_E4M3;
  if (view.dtype == DType::kE5M2) return CUDA_R_8F_E5M2;
  return Internal("an operand is {} where FP8 is due", Name(view.dtype));
}

// d[m, n] = a[m, k] · b[n, k]ᵀ. However their dims are collapsed, three numbers of elements give the sizes:
// k² = (m·k)(n·k) / (m·n).
absl::StatusOr<GemmSpec> MakeSpec(const TensorView& a, const TensorView& b, const TensorView& d) {
  GemmSpec spec{.transpose_b = true, .fast_accumulate = true};
  ASSIGN_OR_RETURN(spec.a, ToFp8Type(a));
  ASSIGN_OR_RETURN(spec.b, ToFp8Type(b));
  ASSIGN_OR_RETURN(spec.d, ToCudaType(d.dtype));
  if (spec.a == CUDA_R_8F_E5M2 && spec.b == CUDA_R_8F_E5M2) {
    return Unimplemented("cuBLASLt multiplies e5m2 by e4m3, not by e5m2");
  }
  const std::int64_t m_k = a.shape.elements();
  const std::int64_t n_k = b.shape.elements();
  const std::int64_t m_n = d.shape.elements();
  if (m_k > 0 && n_k > 0 && m_n > 0) {
    const long double ratio = static_cast<long double>(m_k) / static_cast<long double>(m_n);
    spec.k = std::llround(std::sqrt(ratio * static_cast<long double>(n_k)));
    spec.m = m_k / spec.k;
    spec.n = n_k / spec.k;
  }
  if (spec.m * spec.k != m_k || spec.n * spec.k != n_k || spec.m * spec.n != m_n) {
    return Internal("{} elements times {} are not {}", m_k, n_k, m_n);
  }
  if (spec.m % kFp8Multiple != 0 || spec.n % kFp8Multiple != 0 || spec.k % kFp8Multiple != 0) {
    return Unimplemented("FP8 products take dims that are multiples of {}, not m {}, n {}, k {}",
                         kFp8Multiple, spec.m, spec.n, spec.k);
  }
  return spec;
}

// Inputs a, b, their states[, bias].
absl::StatusOr<Enqueue> PrepareProduct(Device& device, const LaunchArgs& args, const char* op) {
  const std::vector<TensorView>& in = args.inputs;
  const TensorView& d = args.outputs[0];
  const auto in_op = [&](const absl::Status& status) { return WithContext(status, op); };
  absl::StatusOr<GemmSpec> spec = MakeSpec(in[0], in[1], d);
  if (!spec.ok()) return in_op(spec.status());
  RETURN_IF_ERROR(ExpectState(op, in[2]));
  RETURN_IF_ERROR(ExpectState(op, in[3]));
  RETURN_IF_ERROR(ExpectScratch(op, args, kGemmWorkspaceBytes));
  spec->accumulate = Accumulates(args, 0);
  GemmOperands operands{.a = in[0].data,
                        .b = in[1].data,
                        .d = d.data,
                        .a_scale = in[2].as<float>() + kFp8InverseScale,
                        .b_scale = in[3].as<float>() + kFp8InverseScale,
                        .workspace = args.scratch.data()};
  if (in.size() > 4) {
    if (in[4].dtype != d.dtype || d.dtype == DType::kF32) {
      return Unimplemented("{}: cuBLASLt adds a 16-bit bias of the result's type, not {} to {}", op,
                           Name(in[4].dtype), Name(d.dtype));
    }
    RETURN_IF_ERROR(ExpectElements(op, in[4], spec->n));
    spec->epilogue = GemmEpilogue::kBias;
    operands.bias = in[4].data;
  }
  absl::StatusOr<std::shared_ptr<Gemm>> gemm = device.gemm_tuner().Prepare(*spec);
  if (!gemm.ok()) return in_op(gemm.status());
  return Enqueue([gemm = *std::move(gemm), operands](cudaStream_t stream, const KernelContext&) {
    return gemm->Run(stream, operands);
  });
}

}  // namespace

absl::StatusOr<Enqueue> PrepareQuantize(Device&, const LaunchArgs& args) {
  return PrepareSource(args, "quantize", Fp8Source::kCopy);
}
absl::StatusOr<Enqueue> PrepareQuantizeCurrent(Device&, const LaunchArgs& args) {
  return PrepareSource(args, "quantize_current", Fp8Source::kCopy, /*current=*/true);
}
absl::StatusOr<Enqueue> PrepareQuantizeRows(Device&, const LaunchArgs& args) {
  return PrepareSource(args, "quantize_rows", Fp8Source::kCopy, /*current=*/false, /*of_experts=*/true);
}
absl::StatusOr<Enqueue> PrepareQuantizeRowsCurrent(Device&, const LaunchArgs& args) {
  return PrepareSource(args, "quantize_rows_current", Fp8Source::kCopy, /*current=*/true,
                       /*of_experts=*/true);
}
absl::StatusOr<Enqueue> PrepareLayerNormQuantizeAgain(Device&, const LaunchArgs& args) {
  return PrepareNormAgain(args, "layer_norm_quantize_again", true);
}
absl::StatusOr<Enqueue> PrepareRmsNormQuantizeAgain(Device&, const LaunchArgs& args) {
  return PrepareNormAgain(args, "rms_norm_quantize_again", false);
}
absl::StatusOr<Enqueue> PrepareGeluQuantize(Device&, const LaunchArgs& args) {
  RETURN_IF_ERROR(ExpectTanhGelu(args, "gelu_quantize"));
  return PrepareSource(args, "gelu_quantize", Fp8Source::kGelu);
}
absl::StatusOr<Enqueue> PrepareSwigluQuantize(Device&, const LaunchArgs& args) {
  return PrepareSource(args, "swiglu_quantize", Fp8Source::kSwiglu);
}
absl::StatusOr<Enqueue> PrepareGeluGradQuantize(Device&, const LaunchArgs& args) {
  RETURN_IF_ERROR(ExpectTanhGelu(args, "gelu_grad_quantize"));
  return PrepareSource(args, "gelu_grad_quantize", Fp8Source::kGeluGrad);
}
absl::StatusOr<Enqueue> PrepareSwigluGradQuantize(Device&, const LaunchArgs& args) {
  return PrepareSource(args, "swiglu_grad_quantize", Fp8Source::kSwigluGrad);
}
absl::StatusOr<Enqueue> PrepareAddLayerNormQuantize(Device&, const LaunchArgs& args) {
  return PrepareNorm(args, "add_layer_norm_quantize", true);
}
absl::StatusOr<Enqueue> PrepareAddRmsNormQuantize(Device&, const LaunchArgs& args) {
  return PrepareNorm(args, "add_rms_norm_quantize", false);
}
absl::StatusOr<Enqueue> PrepareLayerNormGradAddQuantize(Device&, const LaunchArgs& args) {
  return PrepareNormGrad(args, "layer_norm_grad_add_quantize", true);
}
absl::StatusOr<Enqueue> PrepareRmsNormGradAddQuantize(Device&, const LaunchArgs& args) {
  return PrepareNormGrad(args, "rms_norm_grad_add_quantize", false);
}
absl::StatusOr<Enqueue> PrepareLinearFp8(Device& device, const LaunchArgs& args) {
  return PrepareProduct(device, args, "linear_fp8");
}
absl::StatusOr<Enqueue> PrepareLinearDgradFp8(Device& device, const LaunchArgs& args) {
  return PrepareProduct(device, args, "linear_dgrad_fp8");
}
absl::StatusOr<Enqueue> PrepareLinearWgradFp8(Device& device, const LaunchArgs& args) {
  return PrepareProduct(device, args, "linear_wgrad_fp8");
}

absl::StatusOr<Enqueue> PrepareFp8Update(Device&, const LaunchArgs& args) {
  const TensorView& states = args.outputs[0];
  RETURN_IF_ERROR(ExpectFloat("fp8_update", {&args.inputs[0], &states}));
  if (states.data != args.inputs[0].data) return Internal("fp8_update: works in place");
  const std::int64_t elements = states.shape.elements();
  if (elements % kFp8StateSize != 0) {
    return Internal("fp8_update: {} numbers are no states of {}", elements, kFp8StateSize);
  }
  const auto margin = static_cast<int>(args.instruction->attributes().Int("margin", 0));
  return [data = states.as<float>(), tensors = elements / kFp8StateSize, margin](cudaStream_t stream,
                                                                                 const KernelContext&) {
    LaunchFp8Update(tensors, data, margin, stream);
    return ToStatus(cudaGetLastError(), "fp8_update");
  };
}

}  // namespace engine::backend::cuda
