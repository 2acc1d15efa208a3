// The fused ops; their meaning is the composition that each gives (fused.h).
//
// Costs: FLOPs of the plain ops; bytes of what the one kernel reads and writes.
// They take part in no placement pass: a local graph has its placements before anything is fused.
#include "engine/ops/fused.h"

#include <array>

#include "engine/ops/common.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

using graph::Graph;

// Types and FLOPs of a fused op are those of its composition, on a graph of its own.
struct Composed {
  Graph graph;
  ValueIds outputs;
};

Composed Compose(const OpDef& op, TypeSpan inputs, const Attributes& attributes) {
  Composed composed;
  ValueIds values;
  for (const TensorType& type : inputs) values.push_back(composed.graph.AddInput("", type));
  composed.outputs = op.compose(&composed.graph, values, attributes);
  return composed;
}

template <const OpDef& op>
Types InferFused(TypeSpan inputs, const Attributes& attributes) {
  const Composed composed = Compose(op, inputs, attributes);
  std::vector<TensorType> types;
  for (ValueId output : composed.outputs) types.push_back(composed.graph.value(output).type);
  return types;
}

template <const OpDef& op>
Work FusedWork(TypeSpan inputs, TypeSpan outputs, const Attributes& attributes) {
  const Composed composed = Compose(op, inputs, attributes);
  Work sum{.flops = 0, .bytes = Bytes(inputs) + Bytes(outputs)};
  for (const graph::Node& node : composed.graph.nodes()) {
    std::vector<TensorType> in;
    std::vector<TensorType> out;
    for (ValueId v : node.inputs) in.push_back(composed.graph.value(v).type);
    for (ValueId v : node.outputs) out.push_back(composed.graph.value(v).type);
    const Work part = node.op->work(in, out, node.attributes);
    sum.flops += part.flops;
    sum.product_flops += part.product_flops;
    if (node.op->family != Family::kAttention) continue;
    sum.queries = part.queries;
    sum.head = part.head;
    sum.backward = part.backward;
  }
  if (op.family != Family::kProduct && op.family != Family::kHead) return sum;
  // Of the head: terms as in the mean of the two products that make the first output.
  const Work product = ProductWork(0, inputs, outputs);
  sum.results = product.results;
  sum.depth = product.depth;
  return sum;
}

ValueIds ComposeLinearGelu(Graph* g, const ValueIds& in, const Attributes& attributes) {
  const ValueId pre = g->Emit1(kLinear, "pre", {in[0], in[1], in[2]}, attributes);
  return {g->Emit1(kGelu, "y", {pre}, attributes), pre};
}

ValueIds ComposeLinearDgradGelu(Graph* g, const ValueIds& in, const Attributes& attributes) {
  const ValueId dy = g->Emit1(kLinearDgrad, "dy", {in[0], in[1]}, attributes);
  return {g->Emit1(kGeluGrad, "d_pre", {in[2], dy}, attributes)};
}

ValueIds ComposeLinearAdd(Graph* g, const ValueIds& in, const Attributes& attributes) {
  const ValueId product = g->Emit1(kLinear, "product", {in[0], in[1]}, attributes);
  return {g->Emit1(kAdd, "y", {in[2], product})};
}

ValueIds ComposeLinearGated(Graph* g, const ValueIds& in, const Attributes& attributes) {
  const ValueId pair = g->Emit1(kLinear, "pair", in, attributes);
  return {g->Emit1(attributes.Has("kind") ? kGlu : kSwiglu, "y", {pair}, attributes)};
}

ValueIds ComposeLinearResidual(Graph* g, const ValueIds& in, const Attributes& attributes) {
  ValueIds of_product = {in[0], in[1]};
  if (in.size() > 3) of_product.push_back(in[3]);
  const ValueId product = g->Emit1(kLinear, "product", of_product, attributes);
  return {g->Emit1(kAdd, "y", {in[2], product})};
}

ValueIds ComposeNormLinear(Graph* g, const ValueIds& in, const Attributes& attributes) {
  const bool layer = attributes.Int("layer", 0) != 0;
  const ValueId norm = layer ? g->Emit(kLayerNorm, "norm", {in[0], in[2], in[3]}, attributes)[0]
                             : g->Emit(kRmsNorm, "norm", {in[0], in[2]}, attributes)[0];
  ValueIds of_product = {norm, in[1]};
  const size_t bias = layer ? 4 : 3;
  if (in.size() > bias) of_product.push_back(in[bias]);
  if (attributes.Int("gate", 0) != 0) return ComposeLinearGated(g, of_product, attributes);
  const ValueId product = g->Emit1(kLinear, "product", of_product, attributes);
  if (attributes.Int("gelu", 0) != 0) return {g->Emit1(kGelu, "y", {product}, attributes)};
  return {product};
}

ValueIds ComposeLinearDgradAdd(Graph* g, const ValueIds& in, const Attributes& attributes) {
  const ValueId product = g->Emit1(kLinearDgrad, "product", {in[0], in[1]}, attributes);
  return {g->Emit1(kAdd, "dx", {in[2], product})};
}

ValueIds ComposeGeluGradAgain(Graph* g, const ValueIds& in, const Attributes& attributes) {
  const ValueId d_pre = g->Emit1(kGeluGrad, "d_pre", {in[0], in[1]}, attributes);
  ValueIds outputs = {d_pre, g->Emit1(kGelu, "y", {in[0]}, attributes)};
  if (attributes.Int("bias", 0) != 0) {
    outputs.push_back(g->Emit1(kBiasGrad, "d_bias", {d_pre}, {{"dims", std::int64_t{1}}}));
  }
  return outputs;
}

ValueIds ComposeSwigluGradAgain(Graph* g, const ValueIds& in, const Attributes& attributes) {
  return {g->Emit1(kSwigluGrad, "dx", {in[0], in[1]}, attributes),
          g->Emit1(kSwiglu, "y", {in[0]}, attributes)};
}

ValueIds ComposeExpertActivationGradAgain(Graph* g, const ValueIds& in, const Attributes& attributes) {
  const ValueIds d = g->Emit(kExpertActivationGrad, "d", {in[0], in[1], in[2], in[3]}, attributes);
  return {d[0], d[1], g->Emit1(kExpertActivation, "y", {in[0], in[1], in[2]}, attributes)};
}

// A fifth input is a bias of the branch.
ValueIds ComposeAddLayerNorm(Graph* g, const ValueIds& in, const Attributes& attributes) {
  const ValueId branch = in.size() > 4 ? g->Emit1(kBiasAdd, "branch", {in[1], in[4]}) : in[1];
  const ValueId sum = g->Emit1(kAdd, "sum", {in[0], branch});
  const ValueIds norm = g->Emit(kLayerNorm, "norm", {sum, in[2], in[3]}, attributes);
  return {sum, norm[0], norm[1], norm[2]};
}

ValueIds ComposeAddRmsNorm(Graph* g, const ValueIds& in, const Attributes& attributes) {
  const ValueId sum = g->Emit1(kAdd, "sum", {in[0], in[1]});
  const ValueIds norm = g->Emit(kRmsNorm, "norm", {sum, in[2]}, attributes);
  return {sum, norm[0], norm[1]};
}

ValueIds ComposeAddDropoutLayerNorm(Graph* g, const ValueIds& in, const Attributes& attributes) {
  const ValueId branch = in.size() > 4 ? g->Emit1(kBiasAdd, "branch", {in[1], in[4]}) : in[1];
  const ValueId dropped = g->Emit1(kDropout, "dropped", {branch}, attributes);
  return ComposeAddLayerNorm(g, {in[0], dropped, in[2], in[3]}, attributes);
}

ValueIds ComposeAddDropoutRmsNorm(Graph* g, const ValueIds& in, const Attributes& attributes) {
  const ValueId dropped = g->Emit1(kDropout, "dropped", {in[1]}, attributes);
  return ComposeAddRmsNorm(g, {in[0], dropped, in[2]}, attributes);
}

ValueIds ComposeDropoutGradBias(Graph* g, const ValueIds& in, const Attributes& attributes) {
  const ValueId dx = g->Emit1(kDropoutGrad, "dx", {in[0]}, attributes);
  return {dx, g->Emit1(kBiasGrad, "d_bias", {dx}, {{"dims", std::int64_t{1}}})};
}

// Attribute bias = 1: the column sums of dx are an output too.
ValueIds AddAndSum(Graph* g, ValueId dx, ValueId residual, const Attributes& attributes) {
  const ValueId sum = g->Emit1(kAdd, "dx", {residual, dx});
  if (attributes.Int("bias", 0) == 0) return {sum};
  return {sum, g->Emit1(kBiasGrad, "d_bias", {sum}, {{"dims", std::int64_t{1}}})};
}

ValueIds ComposeLayerNormGradAdd(Graph* g, const ValueIds& in, const Attributes& attributes) {
  const ValueIds norm = g->Emit(kLayerNormGrad, "norm", {in[0], in[1], in[2], in[3], in[4]}, attributes);
  ValueIds sums = AddAndSum(g, norm[0], in[5], attributes);
  ValueIds outputs = {sums[0], norm[1], norm[2]};
  if (sums.size() > 1) outputs.push_back(sums[1]);
  if (attributes.Int("again", 0) != 0) {
    outputs.push_back(g->Emit(kLayerNorm, "again", {in[1], in[2], in[6]}, attributes)[0]);
  }
  return outputs;
}

ValueIds ComposeRmsNormGradAdd(Graph* g, const ValueIds& in, const Attributes& attributes) {
  const ValueIds norm = g->Emit(kRmsNormGrad, "norm", {in[0], in[1], in[2], in[3]}, attributes);
  ValueIds sums = AddAndSum(g, norm[0], in[4], attributes);
  ValueIds outputs = {sums[0], norm[1]};
  if (sums.size() > 1) outputs.push_back(sums[1]);
  if (attributes.Int("again", 0) != 0) {
    outputs.push_back(g->Emit(kRmsNorm, "again", {in[1], in[2]}, attributes)[0]);
  }
  return outputs;
}

const Attributes& Plain() {
  static const Attributes attributes = {{"rotary", std::int64_t{0}}};
  return attributes;
}

ValueIds ComposeRotary(Graph* g, const ValueIds& in, const Attributes& attributes) {
  const ValueIds qkv = g->Emit(kQkvSplit, "turned", {in[0], in[1]}, attributes);
  return {g->Emit1(kQkvMerge, "packed", {qkv[0], qkv[1], qkv[2], in[1]}, Plain())};
}

ValueIds ComposeRotaryGrad(Graph* g, const ValueIds& in, const Attributes& attributes) {
  const ValueIds qkv = g->Emit(kQkvSplit, "parts", {in[0], in[1]}, Plain());
  return {g->Emit1(kQkvMerge, "turned", {qkv[0], qkv[1], qkv[2], in[1]}, attributes)};
}

// Of attention on parts: those, and what stands behind the packed tensor.
ValueIds BehindParts(const ValueIds& parts, const ValueIds& packed) {
  ValueIds inputs = parts;
  inputs.insert(inputs.end(), packed.begin() + 1, packed.end());
  return inputs;
}

ValueIds ComposeAttentionPacked(Graph* g, const ValueIds& in, const Attributes& attributes) {
  const ValueIds qkv = g->Emit(kQkvSplit, "split", {in[0], in[1]}, Plain());
  return g->Emit(kAttention, "core", BehindParts(qkv, in), attributes);
}

ValueIds ComposeAttentionPackedGrad(Graph* g, const ValueIds& in, const Attributes& attributes) {
  const ValueIds qkv = g->Emit(kQkvSplit, "split", {in[0], in[1]}, Plain());
  const ValueIds d = g->Emit(kAttentionGrad, "core", BehindParts(qkv, in), attributes);
  return {g->Emit1(kQkvMerge, "merge", {d[0], d[1], d[2], in[1]}, Plain())};
}

// The attribute of this name alone.
Attributes Only(const char* name, const Attributes& attributes) { return {{name, attributes.Float(name)}}; }

ValueIds ComposeLinearCrossEntropy(Graph* g, const ValueIds& in, const Attributes& attributes) {
  const bool scaled = attributes.Has("by");
  const bool capped = attributes.Has("cap");
  ValueIds of_product = {in[0], in[1]};
  if (in.size() > 3) of_product.push_back(in[3]);
  ValueId logits = g->Emit1(kLinear, "logits", of_product, attributes);
  if (scaled) logits = g->Emit1(kScale, "scaled", {logits}, Only("by", attributes));
  if (capped) logits = g->Emit1(kSoftcap, "capped", {logits}, Only("cap", attributes));
  const ValueIds statistics = g->Emit(kCrossEntropy, "statistics", {logits, in[2]}, attributes);
  const ValueIds loss = g->Emit(kLossSum, "loss", {statistics[0], statistics[1], in[2]}, attributes);
  const ValueId weight = g->Emit1(kLossWeight, "weight", {in[2]},
                                  {{"scale", attributes.Float("scale")},
                                   {"f64", std::int64_t{g->value(in[0]).type.dtype == DType::kF64}}});
  ValueId d = g->Emit1(kCrossEntropyGrad, "d_logits", {logits, in[2], statistics[0], weight}, attributes);
  if (capped) d = g->Emit1(kSoftcapGrad, "d_scaled", {logits, d}, Only("cap", attributes));
  if (scaled) d = g->Emit1(kScale, "d_product", {d}, Only("by", attributes));
  ValueIds outputs = {g->Emit1(kLinearDgrad, "d_x", {d, in[1]}, attributes)};
  if (attributes.Int("frozen", 0) == 0) {
    outputs.push_back(g->Emit1(kLinearWgrad, "d_w", {d, in[0]}, attributes));
  }
  outputs.push_back(loss[0]);
  if (attributes.Int("bias", 0) != 0) {
    outputs.push_back(g->Emit1(kBiasGrad, "d_bias", {d}, {{"dims", std::int64_t{1}}}));
  }
  return outputs;
}

}  // namespace

const OpDef kLinearGelu{.name = "linear_gelu",
                        .infer = InferFused<kLinearGelu>,
                        .family = Family::kProduct,
                        .work = FusedWork<kLinearGelu>,
                        .compose = ComposeLinearGelu};
const OpDef kLinearDgradGelu{.name = "linear_dgrad_gelu",
                             .infer = InferFused<kLinearDgradGelu>,
                             .family = Family::kProduct,
                             .work = FusedWork<kLinearDgradGelu>,
                             .compose = ComposeLinearDgradGelu};
const OpDef kLinearAdd{.name = "linear_add",
                       .infer = InferFused<kLinearAdd>,
                       .family = Family::kProduct,
                       .work = FusedWork<kLinearAdd>,
                       .in_place_input = 2,
                       .compose = ComposeLinearAdd};
const OpDef kLinearGated{.name = "linear_gated",
                         .infer = InferFused<kLinearGated>,
                         .family = Family::kProduct,
                         .work = FusedWork<kLinearGated>,
                         .compose = ComposeLinearGated};
const OpDef kLinearResidual{.name = "linear_residual",
                            .infer = InferFused<kLinearResidual>,
                            .family = Family::kProduct,
                            .work = FusedWork<kLinearResidual>,
                            .in_place_input = 2,
                            .compose = ComposeLinearResidual};
const OpDef kNormLinear{.name = "norm_linear",
                        .infer = InferFused<kNormLinear>,
                        .family = Family::kProduct,
                        .work = FusedWork<kNormLinear>,
                        .compose = ComposeNormLinear};
const OpDef kLinearDgradAdd{.name = "linear_dgrad_add",
                            .infer = InferFused<kLinearDgradAdd>,
                            .family = Family::kProduct,
                            .work = FusedWork<kLinearDgradAdd>,
                            .in_place_input = 2,
                            .compose = ComposeLinearDgradAdd};
const OpDef kGeluGradAgain{.name = "gelu_grad_again",
                           .infer = InferFused<kGeluGradAgain>,
                           .family = Family::kActivation,
                           .work = FusedWork<kGeluGradAgain>,
                           .accumulates = 0b100,
                           .in_place_input = 1,
                           .compose = ComposeGeluGradAgain};
const OpDef kSwigluGradAgain{.name = "swiglu_grad_again",
                             .infer = InferFused<kSwigluGradAgain>,
                             .family = Family::kActivation,
                             .work = FusedWork<kSwigluGradAgain>,
                             .compose = ComposeSwigluGradAgain};
const OpDef kExpertActivationGradAgain{.name = "expert_activation_grad_again",
                                       .infer = InferFused<kExpertActivationGradAgain>,
                                       .family = Family::kActivation,
                                       .work = FusedWork<kExpertActivationGradAgain>,
                                       .in_place_input = 0,
                                       .compose = ComposeExpertActivationGradAgain};
const OpDef kAddLayerNorm{.name = "add_layer_norm",
                          .infer = InferFused<kAddLayerNorm>,
                          .family = Family::kNorm,
                          .work = FusedWork<kAddLayerNorm>,
                          .in_place_input = 0,
                          .compose = ComposeAddLayerNorm};
const OpDef kAddRmsNorm{.name = "add_rms_norm",
                        .infer = InferFused<kAddRmsNorm>,
                        .family = Family::kNorm,
                        .work = FusedWork<kAddRmsNorm>,
                        .in_place_input = 0,
                        .compose = ComposeAddRmsNorm};
const OpDef kAddDropoutLayerNorm{.name = "add_dropout_layer_norm",
                                 .infer = InferFused<kAddDropoutLayerNorm>,
                                 .family = Family::kNorm,
                                 .work = FusedWork<kAddDropoutLayerNorm>,
                                 .in_place_input = 0,
                                 .compose = ComposeAddDropoutLayerNorm};
const OpDef kAddDropoutRmsNorm{.name = "add_dropout_rms_norm",
                               .infer = InferFused<kAddDropoutRmsNorm>,
                               .family = Family::kNorm,
                               .work = FusedWork<kAddDropoutRmsNorm>,
                               .in_place_input = 0,
                               .compose = ComposeAddDropoutRmsNorm};
// Not in place, as dropout_grad is not.
const OpDef kDropoutGradBias{.name = "dropout_grad_bias",
                             .infer = InferFused<kDropoutGradBias>,
                             .work = FusedWork<kDropoutGradBias>,
                             .accumulates = 0b10,
                             .compose = ComposeDropoutGradBias};
const OpDef kLayerNormGradAdd{.name = "layer_norm_grad_add",
                              .infer = InferFused<kLayerNormGradAdd>,
                              .family = Family::kNorm,
                              .work = FusedWork<kLayerNormGradAdd>,
                              .accumulates = 0b1110,
                              .in_place_input = 0,
                              .compose = ComposeLayerNormGradAdd};
const OpDef kRmsNormGradAdd{.name = "rms_norm_grad_add",
                            .infer = InferFused<kRmsNormGradAdd>,
                            .family = Family::kNorm,
                            .work = FusedWork<kRmsNormGradAdd>,
                            .accumulates = 0b110,
                            .in_place_input = 0,
                            .compose = ComposeRmsNormGradAdd};
const OpDef kRotary{.name = "rotary",
                    .infer = InferFused<kRotary>,
                    .work = FusedWork<kRotary>,
                    .in_place_input = 0,
                    .compose = ComposeRotary};
const OpDef kRotaryGrad{.name = "rotary_grad",
                        .infer = InferFused<kRotaryGrad>,
                        .work = FusedWork<kRotaryGrad>,
                        .in_place_input = 0,
                        .compose = ComposeRotaryGrad};
const OpDef kAttentionPacked{.name = "attention_packed",
                             .infer = InferFused<kAttentionPacked>,
                             .family = Family::kAttention,
                             .work = FusedWork<kAttentionPacked>,
                             .compose = ComposeAttentionPacked};
const OpDef kAttentionPackedGrad{.name = "attention_packed_grad",
                                 .infer = InferFused<kAttentionPackedGrad>,
                                 .family = Family::kAttention,
                                 .work = FusedWork<kAttentionPackedGrad>,
                                 .compose = ComposeAttentionPackedGrad};
const OpDef kLinearCrossEntropy{.name = "linear_cross_entropy",
                                .infer = InferFused<kLinearCrossEntropy>,
                                .family = Family::kHead,
                                .work = FusedWork<kLinearCrossEntropy>,
                                .accumulates = 0b1110,
                                .compose = ComposeLinearCrossEntropy};

std::span<const OpDef* const> AllFusedOps() {
  static constexpr std::array kOps = {&kLinearGelu,          &kLinearDgradGelu,
                                      &kLinearAdd,           &kLinearDgradAdd,
                                      &kLinearGated,         &kLinearResidual,
                                      &kNormLinear,          &kGeluGradAgain,
                                      &kSwigluGradAgain,     &kExpertActivationGradAgain,
                                      &kAddLayerNorm,        &kAddRmsNorm,
                                      &kAddDropoutLayerNorm, &kAddDropoutRmsNorm,
                                      &kDropoutGradBias,     &kLayerNormGradAdd,
                                      &kRmsNormGradAdd,      &kRotary,
                                      &kRotaryGrad,          &kAttentionPacked,
                                      &kAttentionPackedGrad, &kLinearCrossEntropy};
  return kOps;
}

}  // namespace engine::ops
