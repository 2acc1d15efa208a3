#include "engine/ops/fusion.h"

#include <array>

#include "engine/graph/gain.h"
#include "engine/ops/common.h"
#include "engine/ops/fp8.h"
#include "engine/ops/fused.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

constexpr std::int64_t kOne = 1;

// Shapes of the examples: sizes do not matter.
const Shape& Stream() {  // B, S, D
  static const Shape shape = {2, 3, 4};
  return shape;
}
const Shape& Wide() {  // B, S, F
  static const Shape shape = {2, 3, 8};
  return shape;
}
const Shape& Gated() {  // B, S, gate and up, F
  static const Shape shape = {2, 3, 2, 8};
  return shape;
}
const Shape& Tokens() {  // B, S
  static const Shape shape = {2, 3};
  return shape;
}
const Shape& Features() {  // D
  static const Shape shape = {4};
  return shape;
}
const Shape& State() {
  static const Shape shape = {8};
  return shape;
}

Attributes Bias() { return {{"bias", kOne}}; }
Attributes Adapter() { return {{"adapter", kOne}}; }
Attributes OneInDim() { return {{"in_dims", kOne}}; }
// cuBLASLt's epilogues and the kernels that quantise have the tanh form alone.
Attributes Tanh() { return {{"tanh", kOne}}; }
// Kernels of norms quantise tensors whose columns are one dim.
Attributes Rows() { return {{"dims", kOne}}; }
Attributes Drops() { return {{"p", 0.5}, {"stream", std::string("s")}}; }
Attributes Format() { return {{"format", std::int64_t{0}}}; }
Attributes RowsAndFormat() { return {{"dims", kOne}, {"format", std::int64_t{0}}}; }

// linear with three inputs.
ValueIds ComposeBiasedLinear(graph::Graph* g, const ValueIds& in, const Attributes& attributes) {
  const ValueId product = g->Emit1(kLinear, "product", {in[0], in[1]}, attributes);
  return {g->Emit1(kBiasAdd, "y", {product, in[2]})};
}

// x, w, b.
std::vector<Shape> BiasedLinear() { return {Stream(), {8, 4}, {8}}; }

void AddProducts(std::vector<FusionRow>* rows) {
  rows->push_back({.op = &kLinearDgradGelu,
                   .variants = {{{Stream(), {4, 8}, Wide()}}},
                   .example = OneInDim(),
                   .at = &kGeluGrad,
                   .asks = InputOf(kGeluGrad, 0),
                   .where = Tanh()});
  rows->push_back({.op = &kLinearGelu,
                   .variants = {{BiasedLinear()}},
                   .example = OneInDim(),
                   .at = &kLinear,
                   .asks = OutputOf(kLinear, 0),
                   .where = Tanh(),
                   .same_unit = true});
  // Of few rows, whose kernels take less time than it takes until one after the other begins.
  const std::vector<Shape> gate_and_up = {Stream(), {2, 8, 4}};
  const std::vector<Shape> biased_gate_and_up = {Stream(), {2, 8, 4}, {2, 8}};
  const Attributes kind = {{"kind", std::string("relu")}};
  rows->push_back({.op = &kLinearGated,
                   .variants = {{gate_and_up},
                                {biased_gate_and_up},
                                {gate_and_up, {}, kind},
                                {biased_gate_and_up, {}, kind}},
                   .example = OneInDim(),
                   .at = &kLinear,
                   .asks = InputOf(kLinear, 0),
                   .same_unit = true,
                   .without_gradients = true});
  // Adapters' wide products, which take longer to write and add than to compute.
  rows->push_back({.op = &kLinearAdd,
                   .variants = {{{Stream(), {8, 4}, Wide()}}},
                   .example = OneInDim(),
                   .at = &kAdd,
                   .named_by = &kLinear,
                   .asks = OutputOf(kAdd, 0),
                   .where = Adapter()});
  rows->push_back({.op = &kLinearDgradAdd,
                   .variants = {{{Stream(), {4, 8}, Wide()}}},
                   .example = OneInDim(),
                   .at = &kAdd,
                   .named_by = &kLinearDgrad,
                   .asks = OutputOf(kAdd, 0),
                   .where = Adapter()});
  rows->push_back({.op = &kLinearResidual,
                   .variants = {{{Stream(), {8, 4}, Wide()}}, {{Stream(), {8, 4}, Wide(), {8}}}},
                   .example = OneInDim(),
                   .at = &kLinear,
                   .asks = InputOf(kLinear, 0),
                   .without_gradients = true});
}

// An activation that is run again for the weight gradient, and its own gradient: both read the same input. Not where
// its output will be quantised as it is made.
void AddRepeatedActivations(std::vector<FusionRow>* rows) {
  rows->push_back({.op = &kGeluGradAgain,
                   .variants = {{{Wide(), Wide()}, Bias()}, {{Wide(), Wide()}}},
                   .at = &kGelu,
                   .asks = InputOf(kGelu, 0),
                   .phase = graph::Phase::kBackward,
                   .except = {OutputOf(kGelu, 0), &kQuantize}});
  rows->push_back({.op = &kSwigluGradAgain,
                   .variants = {{{Gated(), Wide()}}},
                   .at = &kSwiglu,
                   .asks = InputOf(kSwiglu, 0),
                   .phase = graph::Phase::kBackward,
                   .except = {OutputOf(kSwiglu, 0), &kQuantize}});
  const Shape weights = {2, 3, 2};  // B, S, k
  const Shape rows_of_gates = {6, 2, 8};
  rows->push_back({.op = &kExpertActivationGradAgain,
                   .variants = {{{rows_of_gates, weights, {6}, {6, 8}}}},
                   .example = {{"act", std::string("silu")}, {"gated", kOne}},
                   .at = &kExpertActivation,
                   .asks = InputOf(kExpertActivation, 0),
                   .phase = graph::Phase::kBackward,
                   .except = {OutputOf(kExpertActivation, 0), &kQuantize}});
}

void AddNorms(std::vector<FusionRow>* rows) {
  constexpr std::size_t kGainInput = 2;        // of all four
  constexpr std::size_t kBranchBiasInput = 4;  // of add_layer_norm
  // Not where the norm will be quantised as it is made, by kernels that draw nothing.
  rows->push_back({.op = &kAddDropoutLayerNorm,
                   .variants = {{{Stream(), Stream(), Features(), Features(), Features()}},
                                {{Stream(), Stream(), Features(), Features()}}},
                   .example = Drops(),
                   .at = &kLayerNorm,
                   .asks = OutputOf(kAdd, 0),
                   .except = {OutputOf(kLayerNorm, 0), &kQuantize},
                   .one_dim = {kGainInput, kBranchBiasInput}});
  rows->push_back({.op = &kAddDropoutRmsNorm,
                   .variants = {{{Stream(), Stream(), Features()}}},
                   .example = Drops(),
                   .at = &kRmsNorm,
                   .asks = OutputOf(kAdd, 0),
                   .except = {OutputOf(kRmsNorm, 0), &kQuantize},
                   .one_dim = {kGainInput}});
  // The bias of a branch is added before dropout.
  rows->push_back({.op = &kDropoutGradBias,
                   .variants = {{{Stream()}}},
                   .example = Drops(),
                   .at = &kDropoutGrad,
                   .asks = InputOf(kDropoutGrad, 0)});
  // With the bias of a row-parallel product, which the sum over the ranks keeps apart from it.
  rows->push_back({.op = &kAddLayerNorm,
                   .variants = {{{Stream(), Stream(), Features(), Features(), Features()}},
                                {{Stream(), Stream(), Features(), Features()}}},
                   .at = &kLayerNorm,
                   .asks = OutputOf(kAdd, 0),
                   .one_dim = {kGainInput, kBranchBiasInput}});
  rows->push_back({.op = &kAddRmsNorm,
                   .variants = {{{Stream(), Stream(), Features()}}},
                   .at = &kRmsNorm,
                   .asks = OutputOf(kAdd, 0),
                   .one_dim = {kGainInput}});
  // With the gradient of the bias of the branch that ended in the residual stream.
  const std::vector<Shape> layer_norm = {Stream(), Stream(), Features(), Tokens(), Tokens(), Stream()};
  rows->push_back({.op = &kLayerNormGradAdd,
                   .variants = {{layer_norm, Bias()}, {layer_norm}},
                   .at = &kAdd,
                   .named_by = &kLayerNormGrad,
                   .asks = OutputOf(kLayerNormGrad, 0),
                   .one_dim = {kGainInput}});
  const std::vector<Shape> rms_norm = {Stream(), Stream(), Features(), Tokens(), Stream()};
  rows->push_back({.op = &kRmsNormGradAdd,
                   .variants = {{rms_norm, Bias()}, {rms_norm}},
                   .at = &kAdd,
                   .named_by = &kRmsNormGrad,
                   .asks = OutputOf(kRmsNormGrad, 0),
                   .one_dim = {kGainInput}});
}

// Of few rows, which each block of the product can normalise for itself. Behind the rows of norms that add a branch, which
// read it anyway.
void AddNormsOfFewRows(std::vector<FusionRow>* rows) {
  struct Behind {
    const graph::OpDef* at;
    Attributes name;
    Shape w, bias;
    Attributes example;
    bool always_biased;
  };
  const Shape w = {8, 4};
  constexpr std::size_t kGamma = 2;
  for (const Behind& behind : {Behind{&kLinearGated, {{"gate", kOne}}, {2, 8, 4}, {2, 8}, {}, false},
                               Behind{&kLinearGelu, {{"gelu", kOne}}, w, {8}, Tanh(), true},
                               Behind{&kLinear, {}, w, {8}, {}, false}}) {
    FusionRow row = {.op = &kNormLinear,
                     .at = behind.at,
                     .asks = InputOf(*behind.at, 0),
                     .where = OneInDim(),
                     .same_unit = true,
                     .without_gradients = true,
                     .one_dim = {kGamma}};
    for (const bool layer : {true, false}) {
      for (const bool biased : {true, false}) {
        if (behind.always_biased && !biased) continue;
        FusionVariant variant = {
            .inputs = {Stream(), behind.w, Features()}, .attributes = behind.name, .example = behind.example};
        if (layer) {
          variant.inputs.push_back(Features());
          variant.attributes.Set("layer", kOne);
        }
        if (biased) variant.inputs.push_back(behind.bias);
        row.variants.push_back(std::move(variant));
      }
    }
    rows->push_back(std::move(row));
  }
}

// Quantisation where the value is made; what nobody else reads is then not written in 16 bits at all.
void AddQuantizedNorms(std::vector<FusionRow>* rows) {
  rows->push_back({.op = &kAddLayerNormQuantize,
                   .stage = FusionStage::kLast,
                   .variants = {{{Stream(), Stream(), Features(), Features(), State()}}},
                   .example = Format(),
                   .at = &kAddLayerNorm,
                   .asks = OutputOf(kAddLayerNorm, 0),
                   .where = Rows()});
  rows->push_back({.op = &kAddRmsNormQuantize,
                   .stage = FusionStage::kLast,
                   .variants = {{{Stream(), Stream(), Features(), State()}}},
                   .example = Format(),
                   .at = &kAddRmsNorm,
                   .asks = OutputOf(kAddRmsNorm, 0),
                   .where = Rows()});
  const std::vector<Shape> layer_norm = {Stream(), Stream(), Features(), Tokens(),
                                         Tokens(), Stream(), State()};
  rows->push_back({.op = &kLayerNormGradAddQuantize,
                   .stage = FusionStage::kLast,
                   .variants = {{layer_norm, Bias()}, {layer_norm}},
                   .example = Format(),
                   .at = &kLayerNormGradAdd,
                   .asks = OutputOf(kLayerNormGradAdd, 0),
                   .where = Rows()});
  const std::vector<Shape> rms_norm = {Stream(), Stream(), Features(), Tokens(), Stream(), State()};
  rows->push_back({.op = &kRmsNormGradAddQuantize,
                   .stage = FusionStage::kLast,
                   .variants = {{rms_norm, Bias()}, {rms_norm}},
                   .example = Format(),
                   .at = &kRmsNormGradAdd,
                   .asks = OutputOf(kRmsNormGradAdd, 0),
                   .where = Rows()});
}

void AddQuantizedActivations(std::vector<FusionRow>* rows) {
  rows->push_back({.op = &kGeluQuantize,
                   .stage = FusionStage::kLast,
                   .variants = {{{Wide(), State()}}},
                   .example = RowsAndFormat(),
                   .at = &kGelu,
                   .asks = InputOf(kGelu, 0),
                   .where = Tanh()});
  rows->push_back({.op = &kSwigluQuantize,
                   .stage = FusionStage::kLast,
                   .variants = {{{Gated(), State()}}},
                   .example = RowsAndFormat(),
                   .at = &kSwiglu,
                   .asks = InputOf(kSwiglu, 0)});
  rows->push_back({.op = &kGeluGradQuantize,
                   .stage = FusionStage::kLast,
                   .variants = {{{Wide(), Wide(), State()}, Bias()}, {{Wide(), Wide(), State()}}},
                   .example = RowsAndFormat(),
                   .at = &kGeluGrad,
                   .asks = InputOf(kGeluGrad, 0),
                   .where = Tanh()});
  rows->push_back({.op = &kSwigluGradQuantize,
                   .stage = FusionStage::kLast,
                   .variants = {{{Gated(), Wide(), State()}}},
                   .example = RowsAndFormat(),
                   .at = &kSwigluGrad,
                   .asks = InputOf(kSwigluGrad, 0)});
}

// Between product and softmax nothing, a scale, a soft cap, or both; no bias, or one; table and bias each trained or
// frozen.
std::vector<FusionVariant> HeadVariants() {
  const std::vector<Shape> without_bias = {Stream(), {8, 4}, Tokens()};
  const std::vector<Shape> with_bias = {Stream(), {8, 4}, Tokens(), {8}};
  const Attributes frozen = {{"frozen", kOne}};
  const Attributes frozen_with_bias = {{"frozen", kOne}, {"bias", kOne}};
  std::vector<FusionVariant> variants;
  for (const Attributes& between : {Attributes{}, Attributes{{"by", 0.5}}, Attributes{{"cap", 2.0}},
                                    Attributes{{"by", 0.5}, {"cap", 2.0}}}) {
    variants.push_back({without_bias, {}, between});
    variants.push_back({with_bias, Bias(), between});
    variants.push_back({with_bias, {}, between});
    variants.push_back({without_bias, frozen, between});
    variants.push_back({with_bias, frozen_with_bias, between});
    variants.push_back({with_bias, frozen, between});
  }
  return variants;
}

std::vector<FusionRow> MakeRows() {
  std::vector<FusionRow> rows;
  rows.push_back({.op = &kLinear,
                  .stage = FusionStage::kEveryDevice,
                  .compose = ComposeBiasedLinear,
                  .variants = {{BiasedLinear()}},
                  .example = OneInDim(),
                  .at = &kLinear});
  AddRepeatedActivations(&rows);  // before products take the activations' gradients
  AddProducts(&rows);
  AddNorms(&rows);
  AddNormsOfFewRows(&rows);
  AddQuantizedNorms(&rows);
  AddQuantizedActivations(&rows);
  // Head, loss and their gradients, at the place of the one gradient that there always is. compile/fuse.cpp says how
  // many tokens a chunk has.
  rows.push_back({.op = &kLinearCrossEntropy,
                  .stage = FusionStage::kLast,
                  .variants = HeadVariants(),
                  .example = {{"in_dims", kOne}, {"classes", std::int64_t{8}}, {"scale", 1.0}},
                  .at = &kLinearDgrad,
                  .named_by = &kLinear,
                  .asks = OutputOf(kLinear, 0),
                  .across_phases = true});
  return rows;
}

}  // namespace

std::span<const FusionRow> FusionRows() {
  static const std::vector<FusionRow> rows = MakeRows();
  return rows;
}

std::span<const RepeatedNorm> RepeatedNorms() {
  static constexpr std::array kNorms = {
      RepeatedNorm{&kLayerNorm, &kAddLayerNorm, &kLayerNormGradAdd, &kLayerNormQuantizeAgain,
                   graph::kGainOffset},
      RepeatedNorm{&kRmsNorm, &kAddRmsNorm, &kRmsNormGradAdd, &kRmsNormQuantizeAgain, graph::kGainOffset},
      RepeatedNorm{&kLayerNorm, &kAddDropoutLayerNorm, &kLayerNormGradAdd, &kLayerNormQuantizeAgain,
                   graph::kGainOffset},
      RepeatedNorm{&kRmsNorm, &kAddDropoutRmsNorm, &kRmsNormGradAdd, &kRmsNormQuantizeAgain,
                   graph::kGainOffset},
  };
  return kNorms;
}

std::span<const PackedAttention> PackedAttentions() {
  static constexpr std::array kPacked = {
      PackedAttention{.forward = {&kQkvSplit, &kAttention, &kAttentionPacked, &kRotary},
                      .backward = {&kQkvMerge, &kAttentionGrad, &kAttentionPackedGrad, &kRotaryGrad}},
  };
  return kPacked;
}

}  // namespace engine::ops
