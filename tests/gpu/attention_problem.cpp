#include "tests/gpu/attention_problem.h"

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "engine/backend/cuda/profile/profile.h"
#include "engine/ops/fused.h"
#include "engine/ops/ops.h"
#include "engine/plan/control.h"

namespace engine::gpu_test {
namespace {

using backend::cuda::AttentionKernels;
using graph::Attributes;
using ops_test::Input;

constexpr std::size_t kQ = 0, kK = 1, kV = 2, kPositions = 3, kOutput = 4, kStatistics = 5, kGradient = 6,
                      kSinks = 7, kBiases = 8, kSpans = 9;

Attributes AttributesOf(const AttentionOptions& o) {
  Attributes attributes = {{"scale", o.scale}, {"window", o.window}, {"dropout", o.dropout}};
  if (o.dropout > 0) attributes.Set("stream", std::string("core"));
  if (o.softcap > 0) attributes.Set("softcap", o.softcap);
  if (o.alibi) attributes.Set("alibi", std::int64_t{1});
  if (o.distance > 0) attributes.Set("distance", o.distance);
  if (o.pairs > 0) attributes.Set("pairs", o.pairs);
  if (!o.causal) attributes.Set("mask", std::string("none"));
  if (!o.kernel.empty()) attributes.Set("kernel", o.kernel);
  return attributes;
}

// The tensor as a part of a larger one along one dim.
Tensor Placed(const Tensor& whole, int dim, const DimExtent& where, std::int64_t logical_size) {
  Extent extent = whole.View().extent;
  extent.dims[static_cast<std::size_t>(dim)] = where;
  Shape logical = whole.View().logical;
  logical[dim] = logical_size;
  Tensor placed(whole.type(), extent, logical);
  for (std::int64_t i = 0; i < placed.elements(); ++i) placed.Set(i, whole.Get(i));
  return placed;
}

// [B, S, H, 3, E] of q, k and v.
Tensor Packed(const AttentionOptions& o, const Tensor& q, const Tensor& k, const Tensor& v) {
  Tensor packed({{o.batch, o.queries, o.heads, 3, o.head}, DType::kF64});
  for (std::int64_t row = 0; row < q.elements() / o.head; ++row) {
    for (std::int64_t e = 0; e < o.head; ++e) {
      packed.Set((3 * row + 0) * o.head + e, q.Get(row * o.head + e));
      packed.Set((3 * row + 1) * o.head + e, k.Get(row * o.head + e));
      packed.Set((3 * row + 2) * o.head + e, v.Get(row * o.head + e));
    }
  }
  return packed;
}

// Of each query the keys of its document, [first, last).
Tensor SpansOf(const AttentionOptions& o, const Tensor& positions) {
  Tensor spans({{o.batch, o.queries, 2}, DType::kI32});
  for (std::int64_t i = 0; i < positions.elements(); ++i) {
    std::int64_t first = 0;
    std::size_t document = 0;
    const auto place = static_cast<std::int64_t>(positions.Get(i));
    while (document < o.documents.size() && place >= first + o.documents[document])
      first += o.documents[document++];
    spans.Set(2 * i, static_cast<double>(first));
    spans.Set(2 * i + 1,
              static_cast<double>(document < o.documents.size() ? first + o.documents[document] : o.keys));
  }
  return spans;
}

const graph::OpDef& OpOf(bool packed, bool backward) {
  if (packed) return backward ? ops::kAttentionPackedGrad : ops::kAttentionPacked;
  return backward ? ops::kAttentionGrad : ops::kAttention;
}

// Inputs of the CPU's op, which are those of the GPU's where nothing is packed.
Tensors SeparateInputs(const AttentionOptions& o, const Tensors& in, bool backward, bool with_positions) {
  Tensors inputs = {in[kQ], in[kK], in[kV]};
  if (with_positions) inputs.push_back(in[kPositions]);
  if (!o.documents.empty()) inputs.push_back(in[kSpans]);
  if (backward) inputs.insert(inputs.end(), {in[kOutput], in[kStatistics], in[kGradient]});
  if (o.sinks) inputs.push_back(in[kSinks]);
  if (o.has_trained_biases()) inputs.push_back(in[kBiases]);
  return inputs;
}

}  // namespace

std::string AttentionOptions::ToString() const {
  std::string text = fmt::format("{}{}, {} samples, {} queries, {} keys, {} heads of {}", Name(dtype),
                                 packed ? ", packed" : "", batch, queries, keys, heads, head);
  if (value_head != head) text += fmt::format(" and {}", value_head);
  text += fmt::format(", {} kv heads, {}, scale {}", kv_heads, causal ? "causal" : "no mask", scale);
  if (window > 0) text += fmt::format(", window {}", window);
  if (dropout > 0) text += fmt::format(", dropout {}", dropout);
  if (softcap > 0) text += fmt::format(", soft cap {}", softcap);
  if (alibi) text += ", linear biases";
  if (sinks) text += ", sinks";
  if (distance > 0) text += fmt::format(", biases by distance up to {}", distance);
  if (pairs > 0) text += fmt::format(", a bias for each pair of {} places", pairs);
  if (!documents.empty()) text += fmt::format(", documents of {}", fmt::join(documents, ", "));
  for (const Interval& piece : positions) text += fmt::format(", {} from {}", piece.length, piece.start);
  if (logical_heads > 0) text += fmt::format(", heads from {} of {}", first_head, logical_heads);
  if (!kernel.empty()) text += ", kernel " + kernel;
  return text;
}

Tensors AttentionInputs(const AttentionOptions& o, bool saved) {
  const Shape q = {o.batch, o.queries, o.heads, o.head};
  const Shape k = {o.batch, o.keys, o.kv_heads, o.head};
  const Shape v = {o.batch, o.keys, o.kv_heads, o.value_head};
  const Shape out = {o.batch, o.queries, o.heads, o.value_head};
  const Shape rows = {o.batch, o.queries, o.heads};
  const ops_test::Case made = {
      &ops::kAttentionGrad,
      "",
      {{q},
       {k},
       {v},
       Make({o.batch, o.queries}, Input::kPositions),
       {out},
       Make(rows, Input::kReal),
       {out},
       {{o.heads}},
       {o.pairs > 0 ? Shape{o.heads, o.pairs, o.pairs} : Shape{o.heads, 2 * o.distance + 1}}},
      {}};
  Tensors in = ops_test::MakeInputs(made, DType::kF64);
  for (const std::size_t i : {kQ, kK, kV, kGradient, kSinks, kBiases}) in[i] = Rounded(in[i], o.dtype);
  if (!o.positions.empty()) {
    in[kQ] = Placed(in[kQ], 1, o.positions, o.keys);
    for (std::int64_t i = 0; i < in[kPositions].elements(); ++i)
      in[kPositions].Set(i, static_cast<double>(LogicalIndex(o.positions, i % o.queries)));
  }
  if (o.logical_heads > 0) {
    const DimExtent here = {{o.first_head, o.heads}};
    in[kQ] = Placed(in[kQ], 2, here, o.logical_heads);
    for (const std::size_t i : {kSinks, kBiases}) in[i] = Placed(in[i], 0, here, o.logical_heads);
  }
  in.push_back(SpansOf(o, in[kPositions]));
  if (!saved) return in;
  const Tensors forward = ops_test::RunOp(ops::kAttention, AttributesOf(o),
                                          SeparateInputs(o, in, /*backward=*/false, /*with_positions=*/true));
  in[kOutput] = Rounded(forward[0], o.dtype);
  in[kStatistics] = Rounded(forward[1], DType::kF32);
  return in;
}

Problem AttentionProblemOf(const AttentionOptions& o, const Tensors& in, bool backward) {
  Problem problem;
  problem.op = &OpOf(o.packed, backward);
  problem.kernel = std::string(problem.op->name);
  problem.where = fmt::format("{} ({})", problem.kernel, o.ToString());
  problem.attributes = AttributesOf(o);
  if (o.packed) {
    problem.inputs = {Packed(o, in[kQ], in[kK], in[kV]), in[kPositions]};
    if (!o.documents.empty()) problem.inputs.push_back(in[kSpans]);
    if (backward) problem.inputs.insert(problem.inputs.end(), {in[kOutput], in[kStatistics], in[kGradient]});
  } else {
    // Without a mask and without dropout nothing depends on positions, and a model gives none.
    problem.inputs = SeparateInputs(o, in, backward,
                                    /*with_positions=*/o.causal || o.dropout > 0 || o.has_trained_biases());
  }
  for (const Tensor& input : problem.inputs) {
    const bool integer = input.type().dtype == DType::kI32;
    const bool statistics = backward && !integer && input.type().shape == Shape{o.batch, o.queries, o.heads};
    problem.input_dtypes.push_back(integer ? DType::kI32 : statistics ? DType::kF32 : o.dtype);
  }
  const auto types = problem.op->infer(InputTypes(problem), problem.attributes);
  ENGINE_CHECK(types.ok(), "{}: {}", problem.where, Message(types.status()));
  for (const graph::TensorType& type : *types) problem.outputs.push_back(Output::Whole(type));
  return problem;
}

std::vector<graph::TensorType> InputTypes(const Problem& problem) {
  std::vector<graph::TensorType> types;
  for (std::size_t i = 0; i < problem.inputs.size(); ++i)
    types.push_back({problem.inputs[i].type().shape, problem.input_dtypes[i]});
  return types;
}

ExpectedAttention ExpectedOf(const AttentionOptions& o, const Tensors& in, bool backward,
                             AttentionKernels kernels) {
  const Attributes attributes = AttributesOf(o);
  const Tensors inputs = SeparateInputs(o, in, backward, /*with_positions=*/true);
  const Tensors outputs = ops_test::RunOp(OpOf(/*packed=*/false, backward), attributes, inputs);
  const bool rounds = kernels != AttentionKernels::kReference;
  double mass = 0;
  if (backward && rounds) {
    Tensors ones = inputs;
    Tensor& d_o = ones[ones.size() - 1 - (o.sinks ? 1 : 0) - (o.has_trained_biases() ? 1 : 0)];
    for (std::int64_t i = 0; i < d_o.elements(); ++i) d_o.Set(i, 1.0);
    mass = ops_test::Scale(ops_test::RunOp(ops::kAttentionGrad, attributes, ones)[2]);
  }
  // As of our own kernels in attention_cases.cpp. No score is larger than 6 standard deviations, of which tanh.approx gives
  // 2⁻¹¹; cuDNN's key gradients are sums over chunks of queries.
  const double largest = std::min(o.softcap, 6 * 0.75 * std::sqrt(static_cast<double>(o.head)) * o.scale);
  const double more = o.softcap > 0 ? 4 * largest * 0x1p-11 + 0x1p-10 : 0;
  const double kept = 1 / (1 - o.dropout);
  const bool summed = kernels == AttentionKernels::kCudnn && !o.positions.empty();
  std::int64_t terms = o.keys + std::max(o.head, o.value_head);
  if (backward) terms = terms * o.heads / o.kv_heads + (o.sinks ? o.batch * o.queries : 0);
  ExpectedAttention expected;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const bool statistics = (!backward && i == 1) || i >= 3;
    const bool biases = i + 1 == outputs.size() && backward && o.has_trained_biases();
    const DType dtype = statistics ? DType::kF32 : o.dtype;
    Tolerance tolerance;
    tolerance.relative = 1.01 * UnitRoundoff(dtype);
    double absolute = 1.2e-7 * (static_cast<double>(terms) + 16.0) * 4.0 * ops_test::Scale(outputs[i]);
    if (dtype == DType::kF16) absolute += 0x1p-25;
    tolerance.absolute = absolute;
    if (rounds && !backward && i == 1) tolerance.absolute += 2 * largest * 0x1p-11;
    if (rounds && !statistics) {
      tolerance.absolute +=
          kept * kept * CudnnExtra(attributes, backward, summed, i, o.dtype, inputs, outputs, more, mass);
    }
    if (rounds && biases) tolerance.absolute += kept * BiasGradExtra(o.dtype, outputs[i]);
    expected.tolerances.push_back(tolerance);
    // Rounding P, dS and the output leaves errors of 0.6·u of the root mean square (simulated, of 2 to 320 tokens).
    const double u = UnitRoundoff(biases ? o.dtype : dtype);
    expected.spreads.push_back({rounds && (!statistics || biases) ? 3 * (u + more) : 1.01 * u,
                                absolute + (statistics ? 2 * largest * 0x1p-11 : 0)});
  }
  expected.outputs = outputs;
  if (!o.packed || !backward) return expected;
  expected.outputs = {Packed(o, outputs[0], outputs[1], outputs[2])};
  Tolerance widest = expected.tolerances[0];
  for (const Tolerance& one : expected.tolerances) widest.absolute = std::max(widest.absolute, one.absolute);
  expected.tolerances = {widest};
  expected.spreads = {
      *std::max_element(expected.spreads.begin(), expected.spreads.end(),
                        [](const Tolerance& a, const Tolerance& b) { return a.absolute < b.absolute; })};
  return expected;
}

void CompareSpread(const std::string& where, const Tensor& expected, const Tensor& actual, Tolerance spread) {
  double errors = 0;
  double squares = 0;
  for (std::int64_t i = 0; i < expected.elements(); ++i) {
    if (expected.Get(i) == actual.Get(i)) continue;  // infinities, too
    errors += (actual.Get(i) - expected.Get(i)) * (actual.Get(i) - expected.Get(i));
  }
  for (std::int64_t i = 0; i < expected.elements(); ++i)
    if (std::isfinite(expected.Get(i))) squares += expected.Get(i) * expected.Get(i);
  const auto count = static_cast<double>(expected.elements());
  const double error = std::sqrt(errors / count);
  const double most = spread.relative * std::sqrt(squares / count) + spread.absolute;
  CHECK_MESSAGE(error <= most,
                fmt::format("{}: the root mean square of errors is {:.3g}, of {:.3g}; at most {:.3g}", where,
                            error, std::sqrt(squares / count), most));
}

// ------------------------------------------------------------------------------------------- StandingProblem

StandingProblem::~StandingProblem() {
  launch_.reset();
  for (std::byte* const data : all_) cudaFree(data);
}

absl::StatusOr<std::unique_ptr<StandingProblem>> StandingProblem::Make(const Problem& problem, bool poison) {
  auto standing = std::unique_ptr<StandingProblem>(new StandingProblem());
  standing->poison_ = poison;
  RETURN_IF_ERROR(standing->Init(problem));
  return standing;
}

absl::StatusOr<std::byte*> StandingProblem::Allocate(std::int64_t bytes,
                                                     const std::vector<std::byte>* content) {
  void* data = nullptr;
  RETURN_IF_CUDA_ERROR(cudaMalloc(&data, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1))));
  all_.push_back(static_cast<std::byte*>(data));
  if (content != nullptr)
    RETURN_IF_CUDA_ERROR(cudaMemcpy(data, content->data(), content->size(), cudaMemcpyHostToDevice));
  return all_.back();
}

absl::Status StandingProblem::Init(const Problem& problem) {
  Tensor control({{plan::kControlNumbers}, DType::kF64});
  for (std::int64_t i = 0; i < control.elements(); ++i) control.Set(i, 0.0);
  control.Set(plan::kIteration, static_cast<double>(ops_test::kIteration));
  control.Set(plan::kLossScale, problem.loss_scale);
  control.Set(plan::kLabelFactor, 1);
  const std::vector<std::byte> numbers = PackedBytes(control, DType::kF64);
  ASSIGN_OR_RETURN(std::byte* const on_gpu, Allocate(static_cast<std::int64_t>(numbers.size()), &numbers));
  control_ = reinterpret_cast<const double*>(on_gpu);

  instruction_.name = problem.where;
  plan::Kernel kernel{.name = problem.kernel, .op = problem.op, .attributes = problem.attributes};
  kernel.accumulate = problem.op->accumulates;
  kernel.fresh = kernel.accumulate;
  instruction_.what = std::move(kernel);
  backend::LaunchArgs args;
  args.instruction = &instruction_;
  for (std::size_t i = 0; i < problem.inputs.size(); ++i) {
    const std::vector<std::byte> bytes = PackedBytes(problem.inputs[i], problem.input_dtypes[i]);
    backend::TensorView view = problem.inputs[i].View();
    view.dtype = problem.input_dtypes[i];
    ASSIGN_OR_RETURN(view.data, Allocate(static_cast<std::int64_t>(bytes.size()), &bytes));
    args.inputs.push_back(view);
  }
  std::vector<graph::TensorType> output_types;
  for (const Output& output : problem.outputs) {
    const std::int64_t bytes = output.type.shape.elements() * SizeOf(output.type.dtype);
    ASSIGN_OR_RETURN(std::byte* const data, Allocate(bytes, nullptr));
    outputs_.push_back({data, bytes});
    output_types.push_back(output.type);
    args.outputs.push_back({data, output.type.dtype, output.type.shape, output.extent, output.logical});
  }
  const std::vector<graph::TensorType> input_types = InputTypes(problem);
  scratch_.bytes =
      Gpu().Profile().scratch_bytes(problem.kernel, input_types, output_types, problem.attributes);
  ASSIGN_OR_RETURN(scratch_.data, Allocate(scratch_.bytes, nullptr));
  args.scratch = {scratch_.data, static_cast<std::size_t>(scratch_.bytes)};
  ASSIGN_OR_RETURN(launch_, Gpu().Prepare(std::move(args)));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::vector<std::byte>>> StandingProblem::Run() {
  const cudaStream_t stream = Gpu().device().compute();
  ++runs_;
  for (const Buffer& buffer : outputs_) {
    if (poison_)
      RETURN_IF_CUDA_ERROR(
          cudaMemsetAsync(buffer.data, 0xFF, static_cast<std::size_t>(buffer.bytes), stream));
  }
  if (poison_ && scratch_.bytes > 0) {
    RETURN_IF_CUDA_ERROR(
        cudaMemsetAsync(scratch_.data, 17 * runs_ & 0xFF, static_cast<std::size_t>(scratch_.bytes), stream));
  }
  RETURN_IF_ERROR(launch_->Run({.control = control_,
                                .seed = ops_test::kSeed,
                                .iteration = ops_test::kIteration,
                                .first_sample = ops_test::kFirstSample}));
  std::vector<std::vector<std::byte>> bytes;
  for (const Buffer& buffer : outputs_) {
    bytes.emplace_back(static_cast<std::size_t>(buffer.bytes));
    RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(bytes.back().data(), buffer.data, bytes.back().size(),
                                         cudaMemcpyDeviceToHost, stream));
  }
  RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream));
  return bytes;
}

}  // namespace engine::gpu_test
