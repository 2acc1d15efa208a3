#include "tests/gpu/cases.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <set>
#include <string_view>
#include <vector>

#include "engine/backend/cuda/profile/profile.h"
#include "engine/base/core_limit.h"
#include "engine/graph/activation.h"
#include "engine/graph/attention_inputs.h"
#include "engine/ops/fused.h"
#include "engine/ops/ops.h"
#include "tests/ops/interpreter.h"

namespace engine::gpu_test {
namespace {

using graph::Attributes;
using graph::OpDef;
using ops_test::Case;
using ops_test::Input;

// 2⁻¹²: tanh.approx.f32 has a relative error of 2⁻¹¹ (PTX ISA), the 16-bit kernels take (1 + tanh u)/2 from
// it. gelu = x·s; gelu' = s + x·s·(1 − s)·g, g = 2√(2/π)·(1 + 0.134·x²) ≤ 2.1 for |x| ≤ 1.5; so an error δ of
// s is one of 1.5·δ of the value and of (1 + 2·1.5·2.1)·δ ≤ 8·δ of the derivative, which meets |dy| ≤ 1.5. In a gate
// both meet |up| ≤ 1.5 besides.
double GeluExtra(const OpDef& op, const Attributes& attributes, DType dtype) {
  if (dtype == DType::kF32) return 0;
  if (&op == &ops::kGlu || &op == &ops::kGluGrad) {
    const double gate = &op == &ops::kGlu ? 1.5 : 12.0;
    return attributes.String("kind") == "gelu_tanh" ? 0x1p-12 * 1.5 * gate : 0;
  }
  if (attributes.Int("tanh") == 0) return 0;
  return 0x1p-12 * (&op == &ops::kGelu ? 1.5 : 12.0);
}

bool MayTakeTanh(const OpDef& op) {
  return &op == &ops::kGelu || &op == &ops::kGeluGrad || &op == &ops::kGlu || &op == &ops::kGluGrad;
}

bool HasKernel(const Case& test) {
  std::vector<graph::TensorType> types;
  for (const Input& input : test.inputs) types.push_back({.shape = input.shape, .dtype = DType::kBF16});
  return backend::cuda::CudaProfile().lacks(*test.op, types, test.attributes).empty();
}

}  // namespace

Tensors RunOnCpu(const OpDef& op, const Attributes& attributes, const Tensors& inputs) {
  return ops_test::RunOp(op, attributes, inputs, {.threads = std::min(CoresOfProcess(), 16)});
}

void AddCommon(std::initializer_list<const OpDef*> ops, GpuCases* cases) {
  for (const Case& test : ops_test::AllCases()) {
    if (std::find(ops.begin(), ops.end(), test.op) == ops.end() || !HasKernel(test)) continue;
    cases->push_back({.base = test});
    if (!MayTakeTanh(*test.op)) continue;
    cases->back().extra = [op = test.op, attributes = test.attributes](size_t, DType dtype, const Tensors&,
                                                                       const Tensors&) {
      return GeluExtra(*op, attributes, dtype);
    };
  }
}

namespace {

void AddLinear(std::int64_t m, std::int64_t k, std::int64_t n, GpuCases* cases) {
  const Attributes one = {{"in_dims", kOne}};
  const std::string label = fmt::format("m{} k{} n{}", m, k, n);
  const Shape x = {1, m, k};
  const Shape y = {1, m, n};
  std::vector<Input> inputs = {{x}, {{n, k}}};
  if (k <= n) inputs.push_back({{n}});
  GpuCase linear{.base = {&ops::kLinear, label, inputs, one, k + 1, true}};
  if (inputs.size() == 3) {
    // As in the composition, the product may be rounded before the bias is added: cuBLASLt does where rows
    // are not of 16-byte pieces.
    linear.extra = [](size_t, DType dtype, const Tensors& in, const Tensors& expected) {
      return dtype == DType::kF32 ? 0.0 : UnitRoundoff(dtype) * (Scale(expected[0]) + Scale(in[2]));
    };
  }
  cases->push_back(std::move(linear));
  cases->push_back({.base = {&ops::kLinearDgrad, label, {{y}, {{n, k}}}, one, n, true}});
  cases->push_back({.base = {&ops::kLinearWgrad, label, {{y}, {x}}, one, m, true}});
}

// The gradient of a router's logits is fp32; in 16 bits it is cut into two numbers of the dtype, which leave the square of the
// dtype's rounding error, or, in f16, half of its smallest number. dy, w and x are below 1.5.
std::function<double(size_t, DType, const Tensors&, const Tensors&)> CutGradientExtra(std::int64_t terms) {
  return [terms](size_t, DType dtype, const Tensors&, const Tensors&) {
    if (dtype == DType::kF32) return 0.0;
    const double u = UnitRoundoff(dtype);
    const double of_dy = u * u * 1.5 + (dtype == DType::kF16 ? 0x1p-25 : 0.0);
    return of_dy * 1.5 * static_cast<double>(terms);
  };
}

}  // namespace

GpuCases LinearCases() {
  GpuCases cases;
  AddCommon({&ops::kLinear, &ops::kLinearDgrad, &ops::kLinearWgrad}, &cases);
  for (GpuCase& test : cases) {
    if (test.base.op != &ops::kLinear && test.base.attributes.Int("router", 0) != 0)
      test.extra = CutGradientExtra(test.base.terms);
  }
  const auto sizes = {8, 16, 63, 64, 128, 1280};
  for (std::int64_t k : sizes) {
    for (std::int64_t n : sizes) AddLinear(k * n == 1280 * 1280 ? 16 : 40, k, n, &cases);
  }
  AddLinear(37, 64, 128, &cases);
  AddLinear(1, 128, 64, &cases);
  return cases;
}

GpuCases ElementwiseCases() {
  GpuCases cases;
  AddCommon({&ops::kBiasAdd, &ops::kBiasGrad, &ops::kAdd, &ops::kGelu, &ops::kGeluGrad, &ops::kSwiglu,
             &ops::kSwigluGrad, &ops::kDropout, &ops::kDropoutGrad, &ops::kJitter, &ops::kJitterGrad,
             &ops::kActivation, &ops::kActivationGrad, &ops::kGlu, &ops::kGluGrad, &ops::kMultiply,
             &ops::kScale, &ops::kSoftcap, &ops::kSoftcapGrad},
            &cases);
  const Shape x = {2, 64, 1280};
  const auto add = [&](const OpDef& op, std::vector<Input> inputs, Attributes attributes,
                       std::int64_t terms) {
    const std::string label = "x " + inputs[0].shape.ToString();
    cases.push_back({.base = {&op, label, std::move(inputs), attributes, terms, true}});
    if (!MayTakeTanh(op)) return;
    cases.back().extra = [&op, attributes](size_t, DType dtype, const Tensors&, const Tensors&) {
      return GeluExtra(op, attributes, dtype);
    };
  };
  add(ops::kAdd, {{x}, {x}}, {}, 1);
  add(ops::kBiasAdd, {{x}, {{1280}}}, {}, 1);
  for (const Shape& dy : {x, Shape{4, 257, 1280}, Shape{1, 1, 1280}, Shape{3, 100, 7}, Shape{5, 200, 129}}) {
    add(ops::kBiasGrad, {{dy}}, {{"dims", kOne}}, dy[0] * dy[1]);
  }
  for (std::int64_t tanh : {0, 1}) {
    add(ops::kGelu, {{x}}, {{"tanh", tanh}}, 1);
    add(ops::kGeluGrad, {{x}, {x}}, {{"tanh", tanh}}, 1);
  }
  add(ops::kSwiglu, {{{2, 64, 2, 1000}}}, {}, 1);
  add(ops::kSwigluGrad, {{{2, 64, 2, 1000}}, {{2, 64, 1000}}}, {}, 1);
  // Rows of whole vectors; the harness' own cases have others.
  for (const graph::ActivationKind& kind : graph::kGateKinds) {
    const Attributes attributes = {{"kind", std::string(kind.name)}};
    add(ops::kGlu, {{{2, 64, 2, 1000}}}, attributes, 1);
    add(ops::kGluGrad, {{{2, 64, 2, 1000}}, {{2, 64, 1000}}}, attributes, 1);
  }
  const Attributes dropout = {{"p", 0.1}, {"stream", std::string("layers.3.residual")}};
  for (const OpDef* op : {&ops::kDropout, &ops::kDropoutGrad}) {
    for (const Shape& shape : {x, Shape{3, 5, 1}, Shape{2, 3, 5, 7}, Shape{2, 7, 24}, Shape{2, 7, 12}}) {
      add(*op, {{shape}}, dropout, 1);
      add(*op, {{shape}}, dropout, 1);
      cases.back().base.label += ", in pieces";
      cases.back().adjust = InPieces(0);
    }
  }
  const Attributes jitter = {{"eps", 0.1}, {"stream", std::string("layers.3.mlp.router.jitter")}};
  for (const OpDef* op : {&ops::kJitter, &ops::kJitterGrad}) {
    for (const Shape& shape : {x, Shape{3, 5, 1}, Shape{2, 3, 5, 7}}) {
      add(*op, {{shape}}, jitter, 1);
      add(*op, {{shape}}, jitter, 1);
      cases.back().base.label += ", in pieces";
      cases.back().adjust = InPieces(0);
    }
  }
  return cases;
}

namespace {

// Norms with gain 1 + w over the last `dims` dims of x.
void AddHeadNorms(const Shape& x, int dims, GpuCases* cases) {
  Shape rows;
  Shape d;
  for (int dim = 0; dim < x.rank(); ++dim) (dim < x.rank() - dims ? rows : d).push_back(x[dim]);
  const std::string label = fmt::format("{} by {} dims, gain 1 + w", x.ToString(), dims);
  const std::int64_t terms = rows.elements() + d.elements();
  const Input rstd = Make(rows, Input::kPositive);
  const auto add = [&](const OpDef& op, std::vector<Input> inputs) {
    const Attributes attributes = {{"epsilon", 1e-5}, {"gain_offset", 1.0}};
    cases->push_back({.base = {&op, label, std::move(inputs), attributes, terms, true}});
  };
  add(ops::kLayerNorm, {{x}, {d}, {d}});
  add(ops::kLayerNormGrad, {{x}, {x}, {d}, {rows}, rstd});
  add(ops::kRmsNorm, {{x}, {d}});
  add(ops::kRmsNormGrad, {{x}, {x}, {d}, rstd});
}

}  // namespace

std::function<void(Tensors*)> InPieces(size_t input) {
  return [input](Tensors* inputs) {
    const Tensor whole = (*inputs)[input];
    const Shape& shape = whole.type().shape;
    const std::int64_t half = shape[1] / 2;
    Extent extent = Extent::Whole(shape);
    extent.dims[0] = {Interval{1, shape[0]}};
    extent.dims[1] = {Interval{1, shape[1]}};
    if (half > 0) extent.dims[1] = {Interval{1, half}, Interval{shape[1] + 3, shape[1] - half}};
    Shape logical = shape;
    logical[0] = shape[0] + 1;
    logical[1] = 2 * shape[1] + 4;
    Tensor placed(whole.type(), extent, logical);
    for (std::int64_t i = 0; i < placed.elements(); ++i) placed.Set(i, whole.Get(i));
    (*inputs)[input] = placed;
  };
}

GpuCases NormCases() {
  GpuCases cases;
  AddCommon({&ops::kLayerNorm, &ops::kLayerNormGrad, &ops::kRmsNorm, &ops::kRmsNormGrad}, &cases);
  const Attributes epsilon = {{"epsilon", 1e-5}};
  for (std::int64_t columns : {1280, 768, 2048, 4096, 1, 7, 129, 1000}) {
    for (std::int64_t count : {1, 3, 257}) {
      const Shape x = {1, count, columns};
      const Shape rows = {1, count};
      const Shape d = {columns};
      const std::string label = fmt::format("{} rows of {}", count, columns);
      const std::int64_t terms = count + columns;
      const Input rstd = Make(rows, Input::kPositive);
      cases.push_back({.base = {&ops::kLayerNorm, label, {{x}, {d}, {d}}, epsilon, terms, true}});
      cases.push_back(
          {.base = {&ops::kLayerNormGrad, label, {{x}, {x}, {d}, {rows}, rstd}, epsilon, terms, true}});
      cases.push_back({.base = {&ops::kRmsNorm, label, {{x}, {d}}, epsilon, terms, true}});
      cases.push_back({.base = {&ops::kRmsNormGrad, label, {{x}, {x}, {d}, rstd}, epsilon, terms, true}});
    }
  }
  for (const Shape& x :
       {Shape{2, 37, 5, 64}, Shape{2, 37, 8, 128}, Shape{1, 3, 32, 640}, Shape{2, 9, 3, 7}}) {
    for (const int dims : {1, 2}) AddHeadNorms(x, dims, &cases);
  }
  return cases;
}

namespace {

// 90 % of the tokens are `id`.
std::function<void(Tensors*)> Hot(std::int32_t id) {
  return [id](Tensors* inputs) {
    for (std::int64_t i = 0; i < (*inputs)[0].elements(); ++i) {
      if (i % 10 != 0) (*inputs)[0].Set(i, id);
    }
  };
}

void AddEmbeddings(GpuCases* cases) {
  const Input ids = Make({4, 256}, Input::kIds, 1000);
  const auto grad = [&](const std::string& label, const Input& i, std::int64_t columns, std::int64_t rows) {
    const Attributes attributes = {{"rows", rows}};
    const Shape dy = {i.shape[0], i.shape[1], columns};
    cases->push_back(
        {.base = {&ops::kEmbeddingGrad, label, {i, {dy}}, attributes, i.shape.elements(), true}});
    return &cases->back();
  };
  for (std::int64_t columns : {768, 133, 8, 1}) {
    const std::string label = fmt::format("{} columns", columns);
    cases->push_back({.base = {&ops::kEmbedding, label, {ids, {{1000, columns}}}, {}, 1, true}});
    grad(label, ids, columns, 1000);
    grad(label + ", one hot row", ids, columns, 1000)->adjust = Hot(417);
  }
  grad("positions", Make({32, 64}, Input::kPositions), 128, 64);
  grad("one token", Make({1, 1}, Input::kIds, 5), 64, 5);
  // A slice of the table: rows [300, 700) of 1000.
  const Interval slice = {300, 400};
  for (std::int64_t columns : {768, 133}) {
    GpuCase* test = grad(fmt::format("a slice of the table, {} columns", columns), ids, columns, 400);
    test->adjust = Hot(417);
    test->slice = slice;
    test->logical_rows = 1000;
    test = grad(fmt::format("a slice without the hot row, {} columns", columns), ids, columns, 400);
    test->adjust = Hot(717);
    test->slice = slice;
    test->logical_rows = 1000;
    cases->push_back(
        {.base = {&ops::kEmbedding, "a slice of the table", {ids, {{400, columns}}}, {}, 1, true}});
    cases->back().adjust = [slice, columns](Tensors* inputs) {
      Extent extent;
      extent.dims = {{slice}, {Interval{0, columns}}};
      Tensor table({{400, columns}, DType::kF64}, extent, {1000, columns});
      for (std::int64_t i = 0; i < table.elements(); ++i) table.Set(i, (*inputs)[1].Get(i));
      (*inputs)[1] = table;
    };
  }
}

}  // namespace

GpuCases TokenCases() {
  GpuCases cases;
  AddCommon({&ops::kRelativeBias, &ops::kRelativeBiasGrad, &ops::kEmbedding, &ops::kEmbeddingGrad,
             &ops::kQkvSplit, &ops::kQkvMerge, &ops::kRotate, &ops::kRotateGrad},
            &cases);
  AddEmbeddings(&cases);
  const Attributes none = {{"rotary", std::int64_t{0}}};
  const Attributes llama = {{"rotary", kOne}, {"base", 500000.0}, {"factor", 8.0},
                            {"low", 1.0},     {"high", 4.0},      {"original", 8192.0}};
  for (const auto& [label, attributes] :
       {std::pair<std::string, Attributes>{"plain", none}, {"llama", llama}}) {
    const Input positions = Make({1, 1030}, Input::kPositions);
    const Shape kv = {1, 1030, 2, 128};
    const Shape q = {1, 1030, 4, 128};
    cases.push_back(
        {.base = {&ops::kQkvSplit, label, {{{1, 1030, 2, 4, 128}}, positions}, attributes, 2, true}});
    cases.push_back({.base = {&ops::kQkvMerge, label, {{q}, {kv}, {kv}, positions}, attributes, 2, true}});
  }
  // GPT-NeoX's quarter of a head, GPT-J's neighbours, and heads of which not every pair is in a group of eight.
  for (const auto& [head, width, interleaved] :
       {std::array<std::int64_t, 3>{96, 24, 0}, {64, 16, 0}, {256, 64, 1}, {512, 512, 1}, {80, 32, 0}}) {
    const Attributes part = {{"base", 10000.0}, {"width", width}, {"interleaved", interleaved}};
    const std::string label = fmt::format("{} of {}{}", width, head, interleaved != 0 ? ", interleaved" : "");
    for (const OpDef* op : {&ops::kRotate, &ops::kRotateGrad}) {
      cases.push_back(
          {.base = {op, label, {{{2, 259, 3, head}}, Make({2, 259}, Input::kPositions)}, part, 2, true}});
    }
  }
  return cases;
}

namespace {

// Logits and weights of routers, counts and what is of these, which are fp32.
bool IsOfRouter(const OpDef& op, size_t input) {
  for (const OpDef* all : {&ops::kRoute, &ops::kRouteGrad, &ops::kBalanceLoss, &ops::kBalanceLossGrad,
                           &ops::kRouterZLoss, &ops::kRouterZLossGrad, &ops::kPlace, &ops::kDrop,
                           &ops::kSinkhorn, &ops::kRouterEntropy, &ops::kRunningLoad}) {
    if (&op == all) return true;
  }
  const bool passes = &op == &ops::kExpertPasses || &op == &ops::kExpertPassesGrad;
  return (passes || IsExpertActivation(op)) && input == 1;
}

}  // namespace

bool IsExpertActivation(const OpDef& op) {
  return &op == &ops::kExpertActivation || &op == &ops::kExpertActivationGrad ||
         &op == &ops::kExpertActivationGradAgain;
}

bool IsStatistic(const Case& test, size_t input) {
  const OpDef& op = *test.op;
  if (&op == &ops::kLayerNormGrad || &op == &ops::kLayerNormGradAdd) return input == 3 || input == 4;
  if (&op == &ops::kRmsNormGrad || &op == &ops::kRmsNormGradAdd) return input == 3;
  if (&op == &ops::kCrossEntropyGrad) return input == 2 || input == 3;
  if (&op == &ops::kLossSum) return input <= 1;
  if (&op == &ops::kTokenScore) return input == 2 || input == 3;
  if (&op == &ops::kTopLogits) return input == 1;
  if (&op == &ops::kAttentionGrad || &op == &ops::kAttentionPackedGrad) {
    std::vector<graph::TensorType> types;  // of all but positions and spans, the dtype does not matter
    for (const Input& at : test.inputs) {
      const bool is_int = at.kind == Input::kPositions || at.kind == Input::kGiven;
      types.push_back({.shape = at.shape, .dtype = is_int ? DType::kI32 : DType::kF32});
    }
    return graph::InputsOfAttention(types, {.backward = true, .packed = &op == &ops::kAttentionPackedGrad})
               .lse == input;
  }
  if (&op == &ops::kLinearDgrad || &op == &ops::kLinearWgrad)
    return input == 0 && test.attributes.Int("router", 0) != 0;
  return IsOfRouter(op, input);
}

namespace {

Tensors RunComposition(const GpuCase& test, const Tensors& inputs,
                       const std::vector<graph::TensorType>& types) {
  graph::Graph graph;
  ops_test::ValueTensors values;
  graph::ValueIds ids;
  for (const Tensor& input : inputs) {
    ids.push_back(graph.AddInput("input", input.type()));
    values[ids.back()] = input;
  }
  const graph::ValueIds outputs = test.base.op->compose(&graph, ids, test.base.attributes);
  ops_test::ValueTensors exact;
  for (const graph::Node& node : graph.nodes()) {
    Tensors in;
    for (graph::ValueId id : node.inputs) in.push_back(values.at(id));
    Tensors out = RunOnCpu(*node.op, node.attributes, in);
    for (size_t o = 0; o < out.size(); ++o) {
      const graph::ValueId id = node.outputs[o];
      values[id] = out[o];
      const auto* found = std::find(outputs.begin(), outputs.end(), id);
      if (found == outputs.end()) continue;
      exact[id] = out[o];
      values[id] = Rounded(out[o], types[static_cast<size_t>(found - outputs.begin())].dtype);
    }
  }
  Tensors result;
  for (graph::ValueId id : outputs) result.push_back(exact.at(id));
  return result;
}

}  // namespace

Tensors Reference(const GpuCase& test, const Tensors& inputs, const std::vector<graph::TensorType>& types) {
  const OpDef& op = *test.base.op;
  if (op.compose != nullptr) return RunComposition(test, inputs, types);
  Attributes attributes = test.base.attributes;
  if (&op == &ops::kLossWeight) attributes.Set("f64", kOne);
  if (!test.slice) {
    return test.base.large ? RunOnCpu(op, attributes, inputs) : ops_test::RunOp(op, attributes, inputs);
  }
  const Shape& shape = types[0].shape;
  Extent extent = Extent::Whole(shape);
  extent.dims[static_cast<size_t>(test.slice_dim)] = {*test.slice};
  Shape logical = shape;
  logical[test.slice_dim] = test.logical_rows;
  Tensors outputs = {Tensor({shape, DType::kF64}, extent, logical)};
  ops_test::RunInto(op.name, attributes, inputs, &outputs);
  return outputs;
}

namespace {

// tanh.approx (see GeluExtra): an error δ ≤ 2⁻¹² of s is one of 1.5·δ of the value and of 8·δ of the derivative. Beside
// them stand up, the weight and dy, each below 1.5.
double ExpertGeluExtra(const Case& test, size_t output, DType dtype) {
  if (dtype == DType::kF32 || test.attributes.String("act") != "gelu_tanh") return 0;
  constexpr double kError = 0x1p-12;
  if (test.op == &ops::kExpertActivation || output == 2) return kError * 1.5 * 1.5 * 1.5;
  if (output == 0) return kError * 8 * 1.5 * 1.5 * 1.5;
  return kError * 1.5 * 1.5 * 1.5 * static_cast<double>(test.terms);
}

// Rows of the first product, of the activation, of its gradient and of results, and sums between windows, are rounded to the dtype. Each
// changes a term of a sum by a share of u; the terms are of random signs, so that what they change the sum by is, as the sum is, about √n
// times one of them, and stays below 12 roundings of the largest result.
double PassesExtra(size_t output, DType dtype, const Tensors& expected) {
  return dtype == DType::kF32 ? 0 : 12 * UnitRoundoff(dtype) * Scale(expected[output]);
}

// Experts 5 to 8 of 11, as a rank has them that has some.
void AddExpertsHere(GpuCases* cases) {
  const Input choice = Make({3, 101, 3}, Input::kIds, 11);
  cases->push_back({.base = {&ops::kTally,
                             "experts 5 to 8 of 11",
                             {choice},
                             {{"experts", std::int64_t{4}}, {"by_expert", kOne}},
                             1,
                             true}});
  cases->back().slice = Interval{5, 4};
  cases->back().slice_dim = 1;
  cases->back().logical_rows = 11;
  cases->push_back({.base = {&ops::kPlace,
                             "experts 5 to 8 of 11",
                             {choice, Make({3, 4}, Input::kReal)},
                             {},
                             1,
                             true,
                             /*rows=*/true}});
  // Place's rows are bounded by tokens that choose no expert twice.
  const auto distinct = [](Tensors* inputs) {
    Tensor& choices = inputs->front();
    for (std::int64_t i = 0; i < choices.elements(); ++i) {
      const std::int64_t token = i / 3;
      choices.Set(i, static_cast<double>((token * token + 4 * (i % 3)) % 11));
    }
  };
  (*cases)[cases->size() - 2].adjust = distinct;
  cases->back().adjust = [distinct](Tensors* inputs) {
    distinct(inputs);
    Extent extent;
    extent.dims = {{Interval{0, 3}}, {Interval{5, 4}}};
    inputs->back() = Tensor({{3, 4}, DType::kF64}, extent, {3, 11});
    for (std::int64_t i = 0; i < 12; ++i) inputs->back().Set(i, 1.0);
  };
}

// Tokens whose sigmoids are all 0 beside others.
void AddLowScores(GpuCases* cases) {
  const Attributes attributes = {
      {"k", std::int64_t{2}}, {"tokens", std::int64_t{5}}, {"score", std::string("sigmoid")}, {"scale", 0.3}};
  for (const OpDef* op : {&ops::kBalanceLoss, &ops::kBalanceLossGrad}) {
    cases->push_back({.base = {op,
                               "scores of 0",
                               {Make({2, 5, 19}, Input::kReal), Make({2, 19}, Input::kPositive)},
                               attributes,
                               190}});
    cases->back().adjust = [](Tensors* inputs) {
      for (std::int64_t i = 0; i < 3 * 19; ++i) inputs->front().Set(i, -3000.0);
    };
  }
}

}  // namespace

GpuCases ExpertCases() {
  GpuCases cases;
  AddCommon({&ops::kRoute, &ops::kRouteGrad, &ops::kSinkhorn, &ops::kBalanceLoss, &ops::kBalanceLossGrad,
             &ops::kRouterZLoss, &ops::kRouterZLossGrad, &ops::kRouterEntropy, &ops::kRouteCount,
             &ops::kRunningLoad, &ops::kDrop, &ops::kDropCount, &ops::kTally, &ops::kPlace, &ops::kSpread,
             &ops::kCombine, &ops::kExpertActivation, &ops::kExpertActivationGrad, &ops::kExtraRows},
            &cases);
  for (size_t i = 0, plain = cases.size(); i < plain; ++i) {
    if (cases[i].base.op != &ops::kExpertActivationGrad) continue;
    cases.push_back(cases[i]);
    cases.back().base.op = &ops::kExpertActivationGradAgain;
  }
  for (GpuCase& test : cases) {
    if (!IsExpertActivation(*test.base.op)) continue;
    test.extra = [base = test.base](size_t output, DType dtype, const Tensors&, const Tensors&) {
      return ExpertGeluExtra(base, output, dtype);
    };
  }
  AddExpertsHere(&cases);
  AddLowScores(&cases);
  return cases;
}

GpuCases ExpertPassCases() {
  GpuCases cases;
  AddCommon({&ops::kExpertPasses, &ops::kExpertPassesGrad}, &cases);
  for (GpuCase& test : cases) {
    test.extra = [](size_t output, DType dtype, const Tensors&, const Tensors& expected) {
      return PassesExtra(output, dtype, expected);
    };
  }
  return cases;
}

GpuCases OtherCases() {
  std::set<const OpDef*> covered;
  for (const GpuCases& cases : {LinearCases(), ElementwiseCases(), NormCases(), TokenCases(),
                                AttentionCases(), LossCases(), ExpertCases(), ExpertPassCases()}) {
    for (const GpuCase& test : cases) covered.insert(test.base.op);
  }
  GpuCases others;
  for (const Case& test : ops_test::AllCases()) {
    if (!covered.contains(test.op) && HasKernel(test)) others.push_back({.base = test});
  }
  return others;
}

}  // namespace engine::gpu_test
