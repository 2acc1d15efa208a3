// Head, loss and their gradients with FP8 operands, one chunk of tokens after the other. x[T, D], w[V, D].
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "engine/backend/cuda/device/device.h"
#include "engine/backend/cuda/gemm/gemm.h"
#include "engine/backend/cuda/gemm/gemm_tuner.h"
#include "engine/backend/cuda/kernels/cross_entropy.h"
#include "engine/backend/cuda/kernels/elementwise.h"
#include "engine/backend/cuda/kernels/quantize.h"
#include "engine/backend/cuda/launch/head.h"
#include "engine/backend/cuda/launch/loss_terms.h"
#include "engine/backend/cuda/launch/prepare.h"
#include "engine/backend/cuda/launch/prepare_checks.h"
#include "engine/backend/cuda/profile/quantize_grid.h"
#include "engine/backend/cuda/profile/scratch_linear.h"

namespace engine::backend::cuda {
namespace {

constexpr const char* kOp = "linear_cross_entropy_fp8";

// On chunks of one number of tokens. Those of d_w are null where the table is frozen.
struct Products {
  std::shared_ptr<Gemm> logits, d_x, d_w_first, d_w;
};

struct HeadLaunch {
  TensorView x, w, wt, w_state, labels;
  std::optional<TensorView> bias;
  HeadOutputs out;
  std::int64_t tokens = 0, features = 0, columns = 0;
  LinearCrossEntropyFp8Layout layout;
  std::byte* scratch = nullptr;
  std::int64_t classes = 0;
  double scale = 0;
  LossTerms terms;
  LogitMap map;
  DType format = DType::kE5M2;  // of the logits' gradient
  Products whole, rest;         // rest: of the last chunk where it is shorter

  float* state(std::int64_t offset) const { return reinterpret_cast<float*>(scratch + offset); }
  absl::Status Run(cudaStream_t stream, const KernelContext& context) const;
  absl::Status RunChunk(cudaStream_t stream, const KernelContext& context, std::int64_t first_token,
                        std::int64_t rows) const;
};

absl::Status HeadLaunch::RunChunk(cudaStream_t stream, const KernelContext& context, std::int64_t first_token,
                                  std::int64_t rows) const {
  const Products& products = rows == layout.plain.chunk ? whole : rest;
  const std::int64_t first_byte = first_token * features * SizeOf(x.dtype);
  std::byte* const logits = scratch + layout.plain.logits;
  float* const x_state = state(layout.x_state);
  float* const d_state = state(layout.d_state);
  const float* const w_inverse = w_state.as<const float>() + kFp8InverseScale;
  LaunchQuantize(
      {.dtype = x.dtype,
       .rows = rows,
       .columns = features,
       .a = x.as<std::byte>() + first_byte,
       .out = {.format = DType::kE4M3, .q = scratch + layout.x, .qt = scratch + layout.xt, .state = x_state},
       .current = true},
      stream);
  RETURN_IF_ERROR(products.logits->Run(stream, {.a = scratch + layout.x,
                                                .b = w.data,
                                                .d = logits,
                                                .bias = bias.has_value() ? bias->data : nullptr,
                                                .a_scale = x_state + kFp8InverseScale,
                                                .b_scale = w_inverse,
                                                .workspace = scratch}));
  CrossEntropyInPlace({.data = logits,
                       .dtype = x.dtype,
                       .rows = rows,
                       .columns = columns,
                       .classes = classes,
                       .first_class = 0},
                      labels.as<std::int32_t>() + first_token, scale, terms, map, context.control,
                      state(layout.plain.losses) + first_token, stream);
  if (out.d_bias.has_value()) {
    LaunchBiasGrad(x.dtype, rows, columns, logits, out.d_bias->tensor.as<float>(),
                   out.d_bias->adds || first_token != 0, state(layout.plain.d_bias), stream);
  }
  LaunchQuantize(
      {.dtype = x.dtype,
       .rows = rows,
       .columns = columns,
       .a = logits,
       .out = {.format = format, .q = scratch + layout.d, .qt = scratch + layout.dt, .state = d_state}},
      stream);
  RETURN_IF_ERROR(products.d_x->Run(stream, {.a = scratch + layout.d,
                                             .b = wt.data,
                                             .d = out.d_x.as<std::byte>() + first_byte,
                                             .a_scale = d_state + kFp8InverseScale,
                                             .b_scale = w_inverse,
                                             .workspace = scratch}));
  if (!out.d_w.has_value()) return absl::OkStatus();
  Gemm& d_w_product = first_token == 0 ? *products.d_w_first : *products.d_w;
  return d_w_product.Run(stream, {.a = scratch + layout.dt,
                                  .b = scratch + layout.xt,
                                  .d = out.d_w->tensor.data,
                                  .a_scale = d_state + kFp8InverseScale,
                                  .b_scale = x_state + kFp8InverseScale,
                                  .workspace = scratch});
}

// The largest absolute value of a logit's gradient over its weight. Softmax minus the wanted distribution is at most 1,
// with label smoothing too. The z-loss multiplies the softmax by 1 + 2ζ·lse, which has no bound; but it is there to hold
// lse near 0, where it begins at log V, about 12. A gradient of a token with an lse above kMostLogSum is held within the
// format's range, as any number too large is. A soft cap makes gradients smaller, a scale so many times as large.
double LargestGradient(const LossTerms& terms, const LogitMap& map) {
  constexpr double kMostLogSum = 128;
  return std::fabs(map.by) * (1 + 2 * terms.z_loss * kMostLogSum);
}

absl::Status HeadLaunch::Run(cudaStream_t stream, const KernelContext& context) const {
  LaunchFp8Bound(format, scale * LargestGradient(terms, map), context.control, state(layout.d_state), stream);
  for (std::int64_t token = 0; token < tokens; token += layout.plain.chunk) {
    RETURN_IF_ERROR(RunChunk(stream, context, token, std::min(layout.plain.chunk, tokens - token)));
  }
  SumLosses(state(layout.plain.losses), tokens, out.loss.adds, out.loss.tensor.as<double>(), stream);
  return ToStatus(cudaGetLastError(), kOp);
}

absl::StatusOr<Products> PrepareChunk(Device& device, const HeadLaunch& launch, std::int64_t rows,
                                      bool add_to_d_w) {
  const cudaDataType d_type = launch.format == DType::kE4M3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
  GemmSpec spec{.m = rows, .n = launch.columns, .k = launch.features, .transpose_b = true};
  spec.fast_accumulate = true;
  spec.a = CUDA_R_8F_E4M3;
  spec.b = CUDA_R_8F_E4M3;
  if (launch.bias.has_value()) spec.epilogue = GemmEpilogue::kBias;
  ASSIGN_OR_RETURN(spec.d, ToCudaType(launch.x.dtype));
  Products products;
  ASSIGN_OR_RETURN(products.logits, device.gemm_tuner().Prepare(spec));

  spec.epilogue = GemmEpilogue::kNone;
  spec.a = d_type;
  std::swap(spec.n, spec.k);
  ASSIGN_OR_RETURN(spec.d, ToCudaType(launch.out.d_x.dtype));
  ASSIGN_OR_RETURN(products.d_x, device.gemm_tuner().Prepare(spec));

  if (!launch.out.d_w.has_value()) return products;
  spec.m = launch.columns;
  spec.k = rows;
  ASSIGN_OR_RETURN(spec.d, ToCudaType(launch.out.d_w->tensor.dtype));
  spec.accumulate = true;
  ASSIGN_OR_RETURN(products.d_w, device.gemm_tuner().Prepare(spec));
  products.d_w_first = products.d_w;
  if (!add_to_d_w) {
    spec.accumulate = false;
    ASSIGN_OR_RETURN(products.d_w_first, device.gemm_tuner().Prepare(spec));
  }
  return products;
}

absl::Status Check(const LaunchArgs& args, const HeadLaunch& launch) {
  RETURN_IF_ERROR(ExpectScratch(kOp, args, launch.layout.bytes));
  RETURN_IF_ERROR(ExpectFloat(kOp, {&launch.w_state}));
  RETURN_IF_ERROR(ExpectOneElementType(
      kOp, {&launch.x, &launch.out.d_x, launch.bias.has_value() ? &*launch.bias : &launch.x}));
  if (launch.out.d_bias.has_value()) RETURN_IF_ERROR(ExpectFloat(kOp, {&launch.out.d_bias->tensor}));
  if (launch.x.dtype == DType::kF32) return Unimplemented("{}: quantises bf16 and f16, not f32", kOp);
  if (launch.w.dtype != DType::kE4M3 || launch.wt.dtype != DType::kE4M3 ||
      launch.labels.dtype != DType::kI32 || launch.out.loss.tensor.dtype != DType::kF64) {
    return Internal("{}: a table of {} and {}, labels of {}, a loss of {}, where e4m3, i32 and f64 are due",
                    kOp, Name(launch.w.dtype), Name(launch.wt.dtype), Name(launch.labels.dtype),
                    Name(launch.out.loss.tensor.dtype));
  }
  for (std::int64_t size : {launch.tokens, launch.layout.plain.chunk, launch.features, launch.columns}) {
    if (size % kFp8Multiple == 0) continue;
    return Unimplemented(
        "{}: FP8 products take multiples of {}, not {} tokens in chunks of {} times {} by {}", kOp,
        kFp8Multiple, launch.tokens, launch.layout.plain.chunk, launch.columns, launch.features);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Enqueue> PrepareLinearCrossEntropyFp8(Device& device, const LaunchArgs& args) {
  const graph::Attributes& attributes = args.instruction->attributes();
  const std::vector<TensorView>& in = args.inputs;
  auto launch = std::make_shared<HeadLaunch>();
  launch->x = in[0], launch->w = in[1], launch->wt = in[2], launch->w_state = in[3], launch->labels = in[4];
  if (in.size() > 5) launch->bias = in[5];
  launch->out = HeadOutputsOf(args);
  launch->features = launch->w.shape[launch->w.shape.rank() - 1];
  launch->columns = launch->w.shape.elements() / launch->features;
  launch->tokens = launch->x.shape.elements() / launch->features;
  launch->layout = Fp8LayoutOf({.shape = launch->x.shape, .dtype = launch->x.dtype},
                               {.shape = launch->w.shape, .dtype = launch->w.dtype}, attributes);
  launch->scratch = args.scratch.data();
  launch->classes = std::min(attributes.Int("classes"), launch->columns);
  launch->scale = attributes.Float("scale");
  launch->terms = LossTermsOf(attributes);
  launch->map = LogitMapOf(attributes);
  launch->format = attributes.Int("format") == 1 ? DType::kE5M2 : DType::kE4M3;
  RETURN_IF_ERROR(Check(args, *launch));
  const bool add_to_d_w = launch->out.d_w.has_value() && launch->out.d_w->adds;
  const std::int64_t rest = launch->tokens % launch->layout.plain.chunk;
  const auto in_op = [](const absl::Status& status) { return WithContext(status, kOp); };
  absl::StatusOr<Products> products = PrepareChunk(device, *launch, launch->layout.plain.chunk, add_to_d_w);
  if (!products.ok()) return in_op(products.status());
  launch->whole = *std::move(products);
  if (rest != 0) {  // never the first chunk, so it always adds
    products = PrepareChunk(device, *launch, rest, true);
    if (!products.ok()) return in_op(products.status());
    launch->rest = *std::move(products);
  }
  return Enqueue(
      [launch](cudaStream_t stream, const KernelContext& context) { return launch->Run(stream, context); });
}

}  // namespace engine::backend::cuda
