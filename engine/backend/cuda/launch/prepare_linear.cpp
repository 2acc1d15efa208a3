// Linear layers: every product is one cuBLASLt call over collapsed dims. x[M, I], w[O, I], y[M, O].
#include <algorithm>
#include <numeric>
#include <optional>

#include "engine/backend/cuda/device/device.h"
#include "engine/backend/cuda/gemm/gemm.h"
#include "engine/backend/cuda/gemm/gemm_tuner.h"
#include "engine/backend/cuda/kernels/cross_entropy.h"
#include "engine/backend/cuda/kernels/elementwise.h"
#include "engine/backend/cuda/kernels/few_rows.h"
#include "engine/backend/cuda/kernels/narrow_product.h"
#include "engine/backend/cuda/kernels/ordered_product.h"
#include "engine/backend/cuda/launch/head.h"
#include "engine/backend/cuda/launch/loss_terms.h"
#include "engine/backend/cuda/launch/prepare.h"
#include "engine/backend/cuda/launch/prepare_checks.h"
#include "engine/backend/cuda/launch/router_linear.h"
#include "engine/backend/cuda/profile/scratch_linear.h"

namespace engine::backend::cuda {
namespace {

// Sizes of the product behind the collapsed dims.
struct ProductSizes {
  std::int64_t m = 0, in = 0, out = 0;
};

ProductSizes SizesOf(const Shape& w, std::int64_t x_elements, const graph::Attributes& attributes) {
  const int contracted = static_cast<int>(attributes.Int("in_dims"));
  const std::int64_t in = w.elements(w.rank() - contracted, w.rank());
  return {x_elements / in, in, w.elements() / in};
}

bool Accumulates(const LaunchArgs& args, int output) { return (args.accumulate >> output & 1U) != 0; }

absl::Status InOp(const LaunchArgs& args, const absl::Status& status) {
  return status.ok() ? status : WithContext(status, std::string(args.instruction->kernel()));
}

// Dtypes that must be equal: cuBLASLt's epilogues read bias and aux in the type of the result.
absl::Status ExpectDType(const TensorView& tensor, DType dtype, std::string_view what) {
  if (tensor.dtype == dtype) return absl::OkStatus();
  return Unimplemented("{} is {}, must be {}", what, Name(tensor.dtype), Name(dtype));
}

absl::Status ExpectTanhGelu(const LaunchArgs& args, const TensorView& y, std::int64_t columns) {
  if (args.instruction->attributes().Int("tanh", 1) != 1) {
    return Unimplemented("cuBLASLt's gelu is the tanh form, this one is the erf form");
  }
  if (y.dtype == DType::kF32) return Unimplemented("cuBLASLt fuses gelu for bf16 and f16, not for f32");
  if (columns % 8 != 0) {
    return Unimplemented("cuBLASLt fuses gelu for rows of a multiple of 8 elements, not of {}", columns);
  }
  return absl::OkStatus();
}

// The element types of A, B and D.
absl::Status SetTypes(const TensorView& a, const TensorView& b, const TensorView& d, GemmSpec* spec) {
  ASSIGN_OR_RETURN(spec->a, ToCudaType(a.dtype));
  ASSIGN_OR_RETURN(spec->b, ToCudaType(b.dtype));
  ASSIGN_OR_RETURN(spec->d, ToCudaType(d.dtype));
  return ExpectDType(b, a.dtype, "the second operand");
}

// y[M, O] = x[M, I] · wᵀ
GemmSpec ForwardSpec(const ProductSizes& s) { return {.m = s.m, .n = s.out, .k = s.in, .transpose_b = true}; }
// dx[M, I] = dy[M, O] · w
GemmSpec DgradSpec(const ProductSizes& s) { return {.m = s.m, .n = s.in, .k = s.out}; }
// dw[O, I] = dyᵀ · x
GemmSpec WgradSpec(const ProductSizes& s) { return {.m = s.out, .n = s.in, .k = s.m, .transpose_a = true}; }

absl::StatusOr<Enqueue> PrepareProduct(Device& device, const LaunchArgs& args, const GemmSpec& spec,
                                       GemmOperands operands) {
  RETURN_IF_ERROR(ExpectScratch(args.instruction->kernel(), args, kGemmWorkspaceBytes));
  absl::StatusOr<std::shared_ptr<Gemm>> gemm = device.gemm_tuner().Prepare(spec);
  if (!gemm.ok()) return InOp(args, gemm.status());
  operands.workspace = args.scratch.data();
  return Enqueue([gemm = *std::move(gemm), operands](cudaStream_t stream, const KernelContext&) {
    return gemm->Run(stream, operands);
  });
}

// y[m, n] of the spec, of x · wᵀ, which are inputs 0 and 1.
FewRows FewRowsOf(const GemmSpec& spec, const LaunchArgs& args, const TensorView& y) {
  const TensorView& x = args.inputs[0];
  return {.dtype = x.dtype,
          .made = y.dtype,
          .rows = spec.m,
          .columns = spec.n,
          .terms = spec.k,
          .x = x.data,
          .w = args.inputs[1].data,
          .y = y.data,
          .w_stays = (args.constant_inputs & 0b10U) != 0};
}

bool IsFewRows(const GemmSpec& spec, const TensorView& x, const TensorView& y) {
  return cuda::IsFewRows(x.dtype, y.dtype, spec.m, spec.k);
}

Enqueue EnqueueFewRows(const FewRows& product) {
  return [product](cudaStream_t stream, const KernelContext&) -> absl::Status {
    LaunchFewRows(product, stream);
    return ToStatus(cudaGetLastError(), "a product of few rows");
  };
}

// The product (with the bias in input 2, where there is one) by sums in one order, whatever the number of rows
// (ops/linear.cpp, attribute invariant).
absl::StatusOr<Enqueue> PrepareOrdered(Device& device, const LaunchArgs& args, GemmSpec spec,
                                       const GemmOperands& operands, const TensorView& y) {
  FewRows product = FewRowsOf(spec, args, y);
  product.bias = operands.bias;
  if (!HasOrderedProduct(product.dtype, y.dtype, spec.k) ||
      (product.bias != nullptr && y.dtype != product.dtype)) {
    return Unimplemented("{}: no kernel sums {} products of {} terms in one order", args.instruction->name,
                         Name(product.dtype), spec.k);
  }
  std::shared_ptr<Gemm> gemm;
  if (spec.m > kMostFewRows) {
    spec.in_order = true;
    RETURN_IF_ERROR(ExpectScratch(args.instruction->kernel(), args, kGemmWorkspaceBytes));
    ASSIGN_OR_RETURN(gemm, device.gemm_tuner().Prepare(spec));
  }
  return Enqueue([gemm, product, operands](cudaStream_t stream, const KernelContext&) -> absl::Status {
    if (gemm != nullptr) return gemm->Run(stream, operands);
    LaunchOrderedProduct(product, stream);
    return ToStatus(cudaGetLastError(), "a product in order");
  });
}

}  // namespace

absl::StatusOr<Enqueue> PrepareLinear(Device& device, const LaunchArgs& args) {
  const TensorView& x = args.inputs[0];
  const TensorView& w = args.inputs[1];
  const TensorView& y = args.outputs[0];
  GemmSpec spec = ForwardSpec(SizesOf(w.shape, x.shape.elements(), args.instruction->attributes()));
  RETURN_IF_ERROR(InOp(args, SetTypes(x, w, y, &spec)));
  GemmOperands operands = {.a = x.data, .b = w.data, .d = y.data};
  const bool has_bias = args.inputs.size() == 3;
  if (has_bias) {
    RETURN_IF_ERROR(InOp(args, ExpectDType(args.inputs[2], y.dtype, "the bias")));
    spec.epilogue = GemmEpilogue::kBias;
    operands.bias = args.inputs[2].data;
  }
  if (args.instruction->attributes().Int("invariant", 0) != 0) {
    operands.workspace = args.scratch.data();
    return PrepareOrdered(device, args, spec, operands, y);
  }
  if (IsFewRows(spec, x, y) && (!has_bias || y.dtype == x.dtype)) {
    FewRows product = FewRowsOf(spec, args, y);
    product.bias = operands.bias;
    return EnqueueFewRows(product);
  }
  return PrepareProduct(device, args, spec, operands);
}

absl::StatusOr<Enqueue> PrepareLinearGelu(Device& device, const LaunchArgs& args) {
  const TensorView& x = args.inputs[0];
  const TensorView& w = args.inputs[1];
  const TensorView& y = args.outputs[0];
  const TensorView& pre = args.outputs[1];
  GemmSpec spec = ForwardSpec(SizesOf(w.shape, x.shape.elements(), args.instruction->attributes()));
  RETURN_IF_ERROR(InOp(args, SetTypes(x, w, y, &spec)));
  RETURN_IF_ERROR(InOp(args, ExpectTanhGelu(args, y, spec.n)));
  RETURN_IF_ERROR(InOp(args, ExpectDType(args.inputs[2], y.dtype, "the bias")));
  RETURN_IF_ERROR(InOp(args, ExpectDType(pre, y.dtype, "the saved input of gelu")));
  if (IsFewRows(spec, x, y)) {
    FewRows product = FewRowsOf(spec, args, y);
    product.bias = args.inputs[2].data;
    product.activation = graph::Activation::kGeluTanh;
    product.before_activation = pre.data;
    return EnqueueFewRows(product);
  }
  spec.epilogue = GemmEpilogue::kGeluAuxBias;
  return PrepareProduct(
      device, args, spec,
      {.a = x.data, .b = w.data, .d = y.data, .bias = args.inputs[2].data, .aux = pre.data});
}

absl::StatusOr<Enqueue> PrepareLinearDgrad(Device& device, const LaunchArgs& args) {
  if (CutsGradient(args)) return PrepareRouterDgrad(device, args);
  const TensorView& dy = args.inputs[0];
  const TensorView& w = args.inputs[1];
  const TensorView& dx = args.outputs[0];
  GemmSpec spec = DgradSpec(SizesOf(w.shape, dx.shape.elements(), args.instruction->attributes()));
  RETURN_IF_ERROR(InOp(args, SetTypes(dy, w, dx, &spec)));
  return PrepareProduct(device, args, spec, {.a = dy.data, .b = w.data, .d = dx.data});
}

absl::StatusOr<Enqueue> PrepareLinearDgradGelu(Device& device, const LaunchArgs& args) {
  const TensorView& dy = args.inputs[0];
  const TensorView& w = args.inputs[1];
  const TensorView& pre = args.inputs[2];
  const TensorView& d_pre = args.outputs[0];
  GemmSpec spec = DgradSpec(SizesOf(w.shape, d_pre.shape.elements(), args.instruction->attributes()));
  RETURN_IF_ERROR(InOp(args, SetTypes(dy, w, d_pre, &spec)));
  RETURN_IF_ERROR(InOp(args, ExpectTanhGelu(args, d_pre, spec.n)));
  RETURN_IF_ERROR(InOp(args, ExpectDType(pre, d_pre.dtype, "the saved input of gelu")));
  spec.epilogue = GemmEpilogue::kDgelu;
  return PrepareProduct(device, args, spec, {.a = dy.data, .b = w.data, .d = d_pre.data, .aux = pre.data});
}

namespace {

// The product is added to input 2, in whose place its result may be.
absl::StatusOr<Enqueue> PrepareAddedProduct(Device& device, const LaunchArgs& args, GemmSpec spec) {
  const TensorView& a = args.inputs[0];
  const TensorView& w = args.inputs[1];
  const TensorView& c = args.inputs[2];
  const TensorView& y = args.outputs[0];
  RETURN_IF_ERROR(InOp(args, SetTypes(a, w, y, &spec)));
  RETURN_IF_ERROR(InOp(args, ExpectDType(c, y.dtype, "what the product is added to")));
  if (IsNarrowProduct(y.dtype, spec.n, spec.k)) {
    const NarrowProduct narrow = {.dtype = y.dtype,
                                  .rows = spec.m,
                                  .columns = spec.n,
                                  .terms = spec.k,
                                  .transposed = spec.transpose_b,
                                  .a = a.data,
                                  .w = w.data,
                                  .c = c.data,
                                  .y = y.data};
    return Enqueue([narrow](cudaStream_t stream, const KernelContext&) -> absl::Status {
      LaunchNarrowProduct(narrow, stream);
      return ToStatus(cudaGetLastError(), "a narrow product");
    });
  }
  if (spec.transpose_b && IsFewRows(spec, a, y)) {
    FewRows product = FewRowsOf(spec, args, y);
    product.c = c.data;
    return EnqueueFewRows(product);
  }
  spec.accumulate = true;
  ASSIGN_OR_RETURN(Enqueue product,
                   PrepareProduct(device, args, spec, {.a = a.data, .b = w.data, .d = y.data, .c = y.data}));
  if (c.data == y.data) return product;
  // The library may choose another algorithm where the sum has a place of its own: the same one is taken, so that plans that
  // differ in addresses give the same bits.
  return [product = std::move(product), to = y.data, from = c.data,
          bytes = y.shape.elements() * SizeOf(y.dtype)](cudaStream_t stream,
                                                        const KernelContext& context) -> absl::Status {
    RETURN_IF_CUDA_ERROR(
        cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice, stream));
    return product(stream, context);
  };
}

}  // namespace

absl::StatusOr<Enqueue> PrepareLinearAdd(Device& device, const LaunchArgs& args) {
  const ProductSizes sizes =
      SizesOf(args.inputs[1].shape, args.inputs[0].shape.elements(), args.instruction->attributes());
  return PrepareAddedProduct(device, args, ForwardSpec(sizes));
}

absl::StatusOr<Enqueue> PrepareLinearDgradAdd(Device& device, const LaunchArgs& args) {
  const ProductSizes sizes =
      SizesOf(args.inputs[1].shape, args.outputs[0].shape.elements(), args.instruction->attributes());
  return PrepareAddedProduct(device, args, DgradSpec(sizes));
}

absl::StatusOr<Enqueue> PrepareLinearWgrad(Device& device, const LaunchArgs& args) {
  if (CutsGradient(args)) return PrepareRouterWgrad(device, args);
  const TensorView& dy = args.inputs[0];
  const TensorView& x = args.inputs[1];
  const TensorView& dw = args.outputs[0];
  GemmSpec spec = WgradSpec(SizesOf(dw.shape, x.shape.elements(), args.instruction->attributes()));
  RETURN_IF_ERROR(InOp(args, SetTypes(dy, x, dw, &spec)));
  spec.accumulate = Accumulates(args, 0);
  return PrepareProduct(device, args, spec, {.a = dy.data, .b = x.data, .d = dw.data});
}

namespace {

// The three products on chunks of `rows` tokens: all but the last chunk have the same number. Those of d_w are null where
// the table is frozen.
struct ChunkProducts {
  std::shared_ptr<Gemm> logits, d_x, d_w_first, d_w;
};

// One chunk after the other: logits [chunk, V] in scratch become their own gradient.
struct LinearCrossEntropyLaunch {
  TensorView x, w, labels;
  std::optional<TensorView> bias;
  HeadOutputs out;
  ProductSizes sizes;
  LinearCrossEntropyLayout layout;
  std::byte* scratch = nullptr;
  std::int64_t classes = 0;
  double scale = 0;
  LossTerms terms;
  LogitMap map;
  ChunkProducts whole, rest;  // rest: of the last chunk where it is shorter

  absl::Status Run(cudaStream_t stream, const KernelContext& context) const;
  absl::Status RunChunk(cudaStream_t stream, const KernelContext& context, std::int64_t first_token,
                        std::int64_t rows) const;
};

absl::Status LinearCrossEntropyLaunch::RunChunk(cudaStream_t stream, const KernelContext& context,
                                                std::int64_t first_token, std::int64_t rows) const {
  const ChunkProducts& products = rows == layout.chunk ? whole : rest;
  const std::int64_t row_bytes = sizes.in * SizeOf(x.dtype);
  std::byte* const x_rows = x.as<std::byte>() + first_token * row_bytes;
  std::byte* const d_x_rows = out.d_x.as<std::byte>() + first_token * row_bytes;
  std::byte* const logits = scratch + layout.logits;
  auto* const losses = reinterpret_cast<float*>(scratch + layout.losses) + first_token;
  const void* const bias_row = bias.has_value() ? bias->data : nullptr;
  RETURN_IF_ERROR(products.logits->Run(
      stream, {.a = x_rows, .b = w.data, .d = logits, .bias = bias_row, .workspace = scratch}));
  CrossEntropyInPlace({.data = logits,
                       .dtype = x.dtype,
                       .rows = rows,
                       .columns = sizes.out,
                       .classes = classes,
                       .first_class = 0},
                      labels.as<std::int32_t>() + first_token, scale, terms, map, context.control, losses,
                      stream);
  if (out.d_bias.has_value()) {
    LaunchBiasGrad(x.dtype, rows, sizes.out, logits, out.d_bias->tensor.as<float>(),
                   out.d_bias->adds || first_token != 0, reinterpret_cast<float*>(scratch + layout.d_bias),
                   stream);
  }
  RETURN_IF_ERROR(products.d_x->Run(stream, {.a = logits, .b = w.data, .d = d_x_rows, .workspace = scratch}));
  if (!out.d_w.has_value()) return absl::OkStatus();
  Gemm& d_w_product = first_token == 0 ? *products.d_w_first : *products.d_w;
  return d_w_product.Run(stream, {.a = logits, .b = x_rows, .d = out.d_w->tensor.data, .workspace = scratch});
}

absl::Status LinearCrossEntropyLaunch::Run(cudaStream_t stream, const KernelContext& context) const {
  for (std::int64_t token = 0; token < sizes.m; token += layout.chunk) {
    RETURN_IF_ERROR(RunChunk(stream, context, token, std::min(layout.chunk, sizes.m - token)));
  }
  SumLosses(reinterpret_cast<const float*>(scratch + layout.losses), sizes.m, out.loss.adds,
            out.loss.tensor.as<double>(), stream);
  return ToStatus(cudaGetLastError(), "linear_cross_entropy");
}

// Products of `rows` tokens whose rows of x and d_x begin at any multiple of a chunk.
absl::StatusOr<ChunkProducts> PrepareChunk(Device& device, const LinearCrossEntropyLaunch& launch,
                                           std::int64_t rows, bool add_to_d_w) {
  const ProductSizes sizes = {rows, launch.sizes.in, launch.sizes.out};
  const std::int64_t chunk_bytes = launch.layout.chunk * sizes.in * SizeOf(launch.x.dtype);
  const auto alignment = static_cast<std::uint32_t>(std::gcd<std::int64_t>(256, chunk_bytes));
  TensorView logits;
  logits.dtype = launch.x.dtype;
  ChunkProducts products;

  GemmSpec spec = ForwardSpec(sizes);
  spec.alignment = alignment;
  if (launch.bias.has_value()) spec.epilogue = GemmEpilogue::kBias;
  RETURN_IF_ERROR(SetTypes(launch.x, launch.w, logits, &spec));
  ASSIGN_OR_RETURN(products.logits, device.gemm_tuner().Prepare(spec));

  spec = DgradSpec(sizes);
  spec.alignment = alignment;
  RETURN_IF_ERROR(SetTypes(logits, launch.w, launch.out.d_x, &spec));
  ASSIGN_OR_RETURN(products.d_x, device.gemm_tuner().Prepare(spec));

  if (!launch.out.d_w.has_value()) return products;
  spec = WgradSpec(sizes);
  spec.alignment = alignment;
  RETURN_IF_ERROR(SetTypes(logits, launch.x, launch.out.d_w->tensor, &spec));
  spec.accumulate = true;
  ASSIGN_OR_RETURN(products.d_w, device.gemm_tuner().Prepare(spec));
  products.d_w_first = products.d_w;
  if (!add_to_d_w) {
    spec.accumulate = false;
    ASSIGN_OR_RETURN(products.d_w_first, device.gemm_tuner().Prepare(spec));
  }
  return products;
}

absl::Status PrepareChunks(Device& device, LinearCrossEntropyLaunch* launch) {
  RETURN_IF_ERROR(ExpectDType(launch->labels, DType::kI32, "labels"));
  const HeadOutputs& out = launch->out;
  RETURN_IF_ERROR(ExpectDType(out.loss.tensor, DType::kF64, "the loss"));
  if (launch->bias.has_value()) RETURN_IF_ERROR(ExpectDType(*launch->bias, launch->x.dtype, "the bias"));
  if (out.d_bias.has_value())
    RETURN_IF_ERROR(ExpectDType(out.d_bias->tensor, DType::kF32, "the bias's gradient"));
  const bool add_to_d_w = out.d_w.has_value() && out.d_w->adds;
  const std::int64_t rest = launch->sizes.m % launch->layout.chunk;
  ASSIGN_OR_RETURN(launch->whole, PrepareChunk(device, *launch, launch->layout.chunk, add_to_d_w));
  if (rest != 0) {
    // Never the first chunk, so it always adds.
    ASSIGN_OR_RETURN(launch->rest, PrepareChunk(device, *launch, rest, true));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Enqueue> PrepareLinearCrossEntropy(Device& device, const LaunchArgs& args) {
  const graph::Attributes& attributes = args.instruction->attributes();
  auto launch = std::make_shared<LinearCrossEntropyLaunch>();
  launch->x = args.inputs[0];
  launch->w = args.inputs[1];
  launch->labels = args.inputs[2];
  if (args.inputs.size() > 3) launch->bias = args.inputs[3];
  launch->out = HeadOutputsOf(args);
  launch->sizes = SizesOf(launch->w.shape, launch->x.shape.elements(), attributes);
  launch->layout = LayoutOf({.shape = launch->x.shape, .dtype = launch->x.dtype},
                            {.shape = launch->w.shape, .dtype = launch->w.dtype}, attributes);
  launch->scratch = args.scratch.data();
  launch->classes = std::min(attributes.Int("classes"), launch->sizes.out);
  launch->scale = attributes.Float("scale");
  launch->terms = LossTermsOf(attributes);
  launch->map = LogitMapOf(attributes);
  RETURN_IF_ERROR(ExpectScratch(args.instruction->kernel(), args, launch->layout.bytes));
  RETURN_IF_ERROR(InOp(args, PrepareChunks(device, launch.get())));
  return Enqueue(
      [launch](cudaStream_t stream, const KernelContext& context) { return launch->Run(stream, context); });
}

}  // namespace engine::backend::cuda
