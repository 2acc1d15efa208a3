// Costs: FLOPs of the products as in linear.cpp, a few per element for the rest; bytes of what is read and
// written.
//
// Placement: a quantised tensor lies as the one that it is made of; a product as the plain op. A state is on
// every rank.
#include "engine/ops/fp8.h"

#include <array>
#include <cmath>

#include "engine/ops/common.h"
#include "engine/ops/fused.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

using graph::Graph;

std::vector<TensorType> WithoutStates(TypeSpan inputs) {
  std::vector<TensorType> types(inputs.begin(), inputs.end());
  types.erase(types.begin() + 2, types.begin() + 4);
  return types;
}

Work OnePass(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {10.0 * Elements(inputs[0]), Bytes(inputs) + Bytes(outputs)};
}

// The plain op's, with the states of both operands behind them.
template <const OpDef& plain>
Work GroupedProduct(TypeSpan inputs, TypeSpan outputs, const Attributes& attributes) {
  return plain.work(WithoutStates(inputs), outputs, attributes);
}

// 2·M·N·K of operands [M, K] and [N, K].
Work Product(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return ProductWork(2.0 * std::sqrt(Elements(inputs[0]) * Elements(inputs[1]) * Elements(outputs[0])),
                     inputs, outputs);
}

// Head and its gradients: three products of tokens, classes and features, of a frozen table two.
Work Head(TypeSpan inputs, TypeSpan outputs, const Attributes& attributes) {
  const double features = static_cast<double>(inputs[1].shape[inputs[1].shape.rank() - 1]);
  const double products = attributes.Int("frozen", 0) != 0 ? 2 : 3;
  return ProductWork(2 * products * Elements(inputs[0]) * Elements(inputs[1]) / features, inputs, outputs);
}

// Column sums go with the quantised tensor where attribute bias = 1.
bool SumsColumns(const Attributes& attributes) { return attributes.Int("bias", 0) != 0; }

template <bool current>
Types InferQuantize(TypeSpan inputs, const Attributes& attributes) {
  const size_t count = current ? 1 : 2;
  RETURN_IF_ERROR(ExpectInputs(inputs, count, count, "quantize"));
  const Shape& x = inputs[0].shape;
  const DType format = attributes.Int("format") == 1 ? DType::kE5M2 : DType::kE4M3;
  std::vector<TensorType> types(2, {.shape = x, .dtype = format, .dims = inputs[0].dims});
  if (current) types.push_back({.shape = {kScaleNumbers}, .dtype = DType::kF32});
  if (!SumsColumns(attributes)) return types;
  TensorType d_bias{.shape = {}, .dtype = DType::kF32};
  for (int d = x.rank() - static_cast<int>(attributes.Int("dims")); d < x.rank(); ++d)
    d_bias.Append(inputs[0], d);
  types.push_back(d_bias);
  return types;
}

template <bool current>
Types InferQuantizeRows(TypeSpan inputs, const Attributes& attributes) {
  const size_t count = current ? 2 : 3;
  RETURN_IF_ERROR(ExpectInputs(inputs, count, count, "quantize_rows"));
  std::vector<TensorType> types(inputs.begin(), inputs.end());
  types.erase(types.begin() + 1);
  return InferQuantize<current>(types, attributes);
}

template <bool current>
std::vector<Signature> QuantizeSignatures(TypeSpan inputs, const Attributes& attributes, const AxisRule&) {
  const int rank = inputs[0].shape.rank();
  const int lead = rank - static_cast<int>(attributes.Int("dims"));
  std::vector<Signature> signatures;
  for (int dim = -1; dim < rank; ++dim) {
    const Placement x = dim < 0 ? Placement::R() : Placement::S(dim);
    Signature signature{{x}, {x, x}};
    (current ? signature.outputs : signature.inputs).push_back(Placement::R());
    if (SumsColumns(attributes)) {
      signature.outputs.push_back(dim < 0      ? Placement::R()
                                  : dim < lead ? Placement::P()
                                               : Placement::S(dim - lead));
    }
    signatures.push_back(std::move(signature));
  }
  return signatures;
}

// Groups are split as rows are.
template <bool current>
std::vector<Signature> QuantizeRowsSignatures(TypeSpan inputs, const Attributes& attributes,
                                              const AxisRule& rule) {
  std::vector<Signature> signatures = QuantizeSignatures<current>(inputs, attributes, rule);
  for (Signature& signature : signatures) {
    const bool by_rows = signature.inputs[0] == Placement::S(0);
    signature.inputs.insert(signature.inputs.begin() + 1, by_rows ? Placement::S(0) : Placement::R());
  }
  return signatures;
}

// The plain op's, with the states of both operands behind them.
template <const OpDef& plain>
std::vector<Signature> ProductSignatures(TypeSpan inputs, const Attributes& attributes,
                                         const AxisRule& rule) {
  std::vector<Signature> signatures = plain.signatures(WithoutStates(inputs), attributes, rule);
  for (Signature& signature : signatures)
    signature.inputs.insert(signature.inputs.begin() + 2, {Placement::R(), Placement::R()});
  return signatures;
}

// {q, qt[, d_bias]}.
ValueIds Quantized(Graph* g, ValueId x, ValueId state, const Attributes& attributes) {
  return g->Emit(kQuantize, "quantize", {x, state}, attributes);
}

template <const OpDef& activation>
ValueIds ComposeActivation(Graph* g, const ValueIds& in, const Attributes& attributes) {
  const ValueIds inputs(in.begin(), in.end() - 1);
  return Quantized(g, g->Emit1(activation, "y", inputs, attributes), in.back(), attributes);
}

template <const OpDef& norm>
ValueIds ComposeNormAgain(Graph* g, const ValueIds& in, const Attributes& attributes) {
  const ValueIds inputs(in.begin(), in.begin() + (&norm == &kLayerNorm ? 3 : 2));
  return {Quantized(g, g->Emit(norm, "y", inputs, attributes)[0], in.back(), attributes)[1]};
}

// `fused`: add_layer_norm or add_rms_norm, whose output 1 is quantised.
template <const OpDef& fused>
ValueIds ComposeAddNorm(Graph* g, const ValueIds& in, const Attributes& attributes) {
  const ValueIds plain = fused.compose(g, ValueIds(in.begin(), in.end() - 1), attributes);
  const ValueIds q = Quantized(g, plain[1], in.back(), attributes);
  ValueIds outputs = {plain[0], q[0], q[1]};
  outputs.insert(outputs.end(), plain.begin() + 2, plain.end());
  return outputs;
}

// `fused`: layer_norm_grad_add or rms_norm_grad_add, whose output 0 is quantised. Columns are summed then.
template <const OpDef& fused>
ValueIds ComposeNormGradAdd(Graph* g, const ValueIds& in, const Attributes& attributes) {
  Attributes without_sums = attributes;
  without_sums.Set("bias", std::int64_t{0});
  const ValueIds plain = fused.compose(g, ValueIds(in.begin(), in.end() - 1), without_sums);
  const ValueIds q = Quantized(g, plain[0], in.back(), attributes);
  ValueIds outputs = {plain[0], q[0], q[1]};
  outputs.insert(outputs.end(), plain.begin() + 1, plain.end());
  outputs.insert(outputs.end(), q.begin() + 2, q.end());
  return outputs;
}

// The gradient of x takes the table transposed.
ValueIds ComposeHead(Graph* g, const ValueIds& in, const Attributes& attributes) {
  const auto head = [&](ValueId table) {
    ValueIds of_head = {in[0], table, in[4]};
    if (in.size() > 5) of_head.push_back(in[5]);
    return kLinearCrossEntropy.compose(g, of_head, attributes);
  };
  ValueIds outputs = head(in[1]);
  outputs[0] = head(in[2])[0];
  return outputs;
}

}  // namespace

graph::StateSpec ScaleSpec(double start, DType format) {
  constexpr std::uint32_t kFormat = 6;
  const auto scale = static_cast<float>(start);
  const double of_format = format == DType::kE5M2 ? 1 : 0;
  return {.life = graph::Lifetime::kRun,
          .update = graph::StateUpdate::kScales,
          .fill = {1 / scale, 0, 0, 0, scale, 0, of_format, 0},
          .fixed = 1U << kFormat,
          .folder = "fp8"};
}

const OpDef kQuantize{.name = "quantize",
                      .infer = InferQuantize<false>,
                      .work = OnePass,
                      .signatures = QuantizeSignatures<false>,
                      .accumulates = 0b100};
const OpDef kQuantizeCurrent{.name = "quantize_current",
                             .infer = InferQuantize<true>,
                             .work = OnePass,
                             .signatures = QuantizeSignatures<true>,
                             .accumulates = 0b1000};
const OpDef kQuantizeRows{.name = "quantize_rows",
                          .infer = InferQuantizeRows<false>,
                          .work = OnePass,
                          .signatures = QuantizeRowsSignatures<false>};
const OpDef kQuantizeRowsCurrent{.name = "quantize_rows_current",
                                 .infer = InferQuantizeRows<true>,
                                 .work = OnePass,
                                 .signatures = QuantizeRowsSignatures<true>};
const OpDef kLayerNormQuantizeAgain{.name = "layer_norm_quantize_again",
                                    .family = Family::kNorm,
                                    .work = OnePass,
                                    .compose = ComposeNormAgain<kLayerNorm>};
const OpDef kRmsNormQuantizeAgain{.name = "rms_norm_quantize_again",
                                  .family = Family::kNorm,
                                  .work = OnePass,
                                  .compose = ComposeNormAgain<kRmsNorm>};
const OpDef kGeluQuantize{.name = "gelu_quantize",
                          .family = Family::kActivation,
                          .work = OnePass,
                          .compose = ComposeActivation<kGelu>};
const OpDef kSwigluQuantize{.name = "swiglu_quantize",
                            .family = Family::kActivation,
                            .work = OnePass,
                            .compose = ComposeActivation<kSwiglu>};
const OpDef kGeluGradQuantize{.name = "gelu_grad_quantize",
                              .family = Family::kActivation,
                              .work = OnePass,
                              .accumulates = 0b100,
                              .compose = ComposeActivation<kGeluGrad>};
const OpDef kSwigluGradQuantize{.name = "swiglu_grad_quantize",
                                .family = Family::kActivation,
                                .work = OnePass,
                                .compose = ComposeActivation<kSwigluGrad>};
const OpDef kAddLayerNormQuantize{.name = "add_layer_norm_quantize",
                                  .family = Family::kNorm,
                                  .work = OnePass,
                                  .compose = ComposeAddNorm<kAddLayerNorm>};
const OpDef kAddRmsNormQuantize{.name = "add_rms_norm_quantize",
                                .family = Family::kNorm,
                                .work = OnePass,
                                .compose = ComposeAddNorm<kAddRmsNorm>};
const OpDef kLayerNormGradAddQuantize{.name = "layer_norm_grad_add_quantize",
                                      .family = Family::kNorm,
                                      .work = OnePass,
                                      .accumulates = 0b111000,
                                      .compose = ComposeNormGradAdd<kLayerNormGradAdd>};
const OpDef kRmsNormGradAddQuantize{.name = "rms_norm_grad_add_quantize",
                                    .family = Family::kNorm,
                                    .work = OnePass,
                                    .accumulates = 0b11000,
                                    .compose = ComposeNormGradAdd<kRmsNormGradAdd>};
const OpDef kLinearFp8{.name = "linear_fp8",
                       .family = Family::kProduct,
                       .work = Product,
                       .signatures = ProductSignatures<kLinear>};
const OpDef kLinearDgradFp8{.name = "linear_dgrad_fp8",
                            .family = Family::kProduct,
                            .work = Product,
                            .signatures = ProductSignatures<kLinearDgrad>};
const OpDef kLinearWgradFp8{.name = "linear_wgrad_fp8",
                            .family = Family::kProduct,
                            .work = Product,
                            .signatures = ProductSignatures<kLinearWgrad>,
                            .accumulates = 1};
const OpDef kGroupedLinearFp8{.name = "grouped_linear_fp8",
                              .family = Family::kProduct,
                              .work = GroupedProduct<kGroupedLinear>,
                              .signatures = ProductSignatures<kGroupedLinear>};
const OpDef kGroupedLinearDgradFp8{.name = "grouped_linear_dgrad_fp8",
                                   .family = Family::kProduct,
                                   .work = GroupedProduct<kGroupedLinearDgrad>,
                                   .signatures = ProductSignatures<kGroupedLinearDgrad>};
const OpDef kGroupedLinearWgradFp8{.name = "grouped_linear_wgrad_fp8",
                                   .family = Family::kProduct,
                                   .work = GroupedProduct<kGroupedLinearWgrad>,
                                   .signatures = ProductSignatures<kGroupedLinearWgrad>,
                                   .accumulates = 1};
const OpDef kLinearCrossEntropyFp8{.name = "linear_cross_entropy_fp8",
                                   .family = Family::kHead,
                                   .work = Head,
                                   .accumulates = 0b1110,
                                   .compose = ComposeHead};

std::span<const OpDef* const> AllFp8Ops() {
  static constexpr std::array kOps = {&kQuantize,
                                      &kQuantizeCurrent,
                                      &kQuantizeRows,
                                      &kQuantizeRowsCurrent,
                                      &kLayerNormQuantizeAgain,
                                      &kRmsNormQuantizeAgain,
                                      &kGeluQuantize,
                                      &kSwigluQuantize,
                                      &kGeluGradQuantize,
                                      &kSwigluGradQuantize,
                                      &kAddLayerNormQuantize,
                                      &kAddRmsNormQuantize,
                                      &kLayerNormGradAddQuantize,
                                      &kRmsNormGradAddQuantize,
                                      &kLinearFp8,
                                      &kLinearDgradFp8,
                                      &kLinearWgradFp8,
                                      &kGroupedLinearFp8,
                                      &kGroupedLinearDgradFp8,
                                      &kGroupedLinearWgradFp8,
                                      &kLinearCrossEntropyFp8};
  return kOps;
}

std::span<const Fp8Product> Fp8Products() {
  using Operand = Fp8Product::Operand;
  using Form = Fp8Product::Form;
  static const std::vector<Fp8Product> products = {
      {.plain = &kLinear,
       .fp8 = &kLinearFp8,
       .operands = {Operand::kInput, Operand::kWeight},
       .inputs = {{0, Form::kQuantized}, {1, Form::kQuantized}, {0, Form::kState}, {1, Form::kState}}},
      {.plain = &kLinearDgrad,
       .fp8 = &kLinearDgradFp8,
       .operands = {Operand::kGradient, Operand::kWeight},
       .inputs = {{0, Form::kQuantized}, {1, Form::kTransposed}, {0, Form::kState}, {1, Form::kState}}},
      {.plain = &kLinearWgrad,
       .fp8 = &kLinearWgradFp8,
       .operands = {Operand::kGradient, Operand::kInput},
       .inputs = {{0, Form::kTransposed}, {1, Form::kTransposed}, {0, Form::kState}, {1, Form::kState}}},
      {.plain = &kGroupedLinear,
       .fp8 = &kGroupedLinearFp8,
       .operands = {Operand::kInput, Operand::kWeight},
       .inputs = {{0, Form::kQuantized}, {1, Form::kQuantized}, {0, Form::kState}, {1, Form::kState}},
       .of_experts = true},
      {.plain = &kGroupedLinearDgrad,
       .fp8 = &kGroupedLinearDgradFp8,
       .operands = {Operand::kGradient, Operand::kWeight},
       .inputs = {{0, Form::kQuantized}, {1, Form::kTransposed}, {0, Form::kState}, {1, Form::kState}},
       .of_experts = true},
      {.plain = &kGroupedLinearWgrad,
       .fp8 = &kGroupedLinearWgradFp8,
       .operands = {Operand::kGradient, Operand::kInput},
       .inputs = {{0, Form::kTransposed}, {1, Form::kTransposed}, {0, Form::kState}, {1, Form::kState}},
       .of_experts = true},
      {.plain = &kLinearCrossEntropy,
       .fp8 = &kLinearCrossEntropyFp8,
       .operands = {Operand::kOther, Operand::kWeight},
       .inputs = {{0, Form::kPlain}, {1, Form::kQuantized}, {1, Form::kTransposed}, {1, Form::kState}},
       .has_format = true},
  };
  return products;
}

}  // namespace engine::ops
