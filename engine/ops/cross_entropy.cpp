// Cross entropy of next-token prediction, in four ops (and one for scores) so that a split vocabulary exchanges per-token
// statistics only.
//
//   cross_entropy(logits[…, V], labels[…] int32) → lse[…], target[…]
//     lse = log Σ_v exp(z_v),   target = z_label
//     over the classes v < attribute classes: rows that only pad the vocabulary take no part. A rank that
//     holds columns [v0, v1) gives the terms of its own columns, and 0 as target where the label is another
//     rank's.
//   loss_sum(lse, target, labels) → Σ (lse − target) over labels ≥ 0, float64 (accumulates over microbatches)
//   loss_weight(labels) → w[…]: attribute scale where label ≥ 0, else 0
//     It is d(loss)/d(lse), and −d(loss)/d(target).
//   cross_entropy_grad(logits, labels, lse, w) → d_logits
//     d_logits = w · (exp(z − lse) − onehot(label)), 0 in padding columns
//
// Attribute scale is the factor of the whole loss in the gradient (1 / tokens of the global batch); the value
// of loss_sum itself is not scaled.
//
// Two terms may be added, by attributes of cross_entropy, loss_sum and cross_entropy_grad that are there only where
// they are not 0, and then equal in all three:
//   smoothing ε   label smoothing (Szegedy et al., arXiv:1512.00567, section 7), as PyTorch's label_smoothing: the
//                 wanted distribution is (1 − ε)·onehot(label) + ε/V over the V = classes classes.
//                 target = (1 − ε)·z_label + ε/V · Σ_v z_v
//   z_loss ζ      keeps the logits' normaliser near 1 (PaLM, arXiv:2204.02311, section 5): + ζ·lse² for each token.
//                 loss_sum = Σ (lse − target + ζ·lse²)
//   d_logits = w · (exp(z − lse)·(1 + 2ζ·lse) − (1 − ε)·onehot(label) − ε/V), 0 in padding columns
// The weight w stays the attribute scale: cross_entropy_grad knows the factor 1 + 2ζ·lse of d(loss)/d(lse) itself.
// A rank that holds some columns gives their part of the sum in target, which so stays partial under sum.
//
// Placement: a split vocabulary makes lse partial under log-sum-exp and target partial under sum
// (Megatron-LM's vocabulary-parallel cross entropy, arXiv:1909.08053).
//
// Backward saves logits, labels, lse.
//
// For those who ask how well each token was predicted, without a gradient:
//   token_score(logits, labels, lse, target) → log_probability[…], rank[…], both of lse's dtype
//     log_probability = target − lse, where lse and target are those of cross_entropy without the two terms above
//     rank = how many classes come before the label's: those of greater logits, and of equal ones those of lower ids.
//     So rank 0 says that the label is the likeliest class, the lowest id of several. A rank of the mesh that holds
//     some columns counts those; counts below 2²⁴ are exact in float.
//     Both are 0 where the label is below 0.
#include "engine/ops/common.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

absl::Status ExpectTerms(const Attributes& attributes, std::string_view op) {
  const double smoothing = attributes.Float("smoothing", 0);
  const double z_loss = attributes.Float("z_loss", 0);
  if (smoothing < 0 || smoothing >= 1)
    return InvalidArgument("{}: label smoothing is {}, must be from 0 to below 1", op, smoothing);
  if (z_loss < 0)
    return InvalidArgument("{}: the factor of the z-loss is {}, must not be negative", op, z_loss);
  return absl::OkStatus();
}

Types InferCrossEntropy(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 2, 2, "cross_entropy"));
  RETURN_IF_ERROR(ExpectTerms(attributes, "cross_entropy"));
  const TensorType statistic =
      Leading(inputs[0], inputs[0].shape.rank() - 1, StatisticsDType(inputs[0].dtype));
  return std::vector<TensorType>{statistic, statistic};
}
Types InferLossSum(TypeSpan inputs, const Attributes&) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 3, 3, "loss_sum"));
  return std::vector<TensorType>{{.shape = {}, .dtype = DType::kF64}};
}
Types InferLossWeight(TypeSpan inputs, const Attributes& attributes) {
  return std::vector<TensorType>{
      Leading(inputs[0], inputs[0].shape.rank(), attributes.Int("f64", 0) != 0 ? DType::kF64 : DType::kF32)};
}
Types InferCrossEntropyGrad(TypeSpan inputs, const Attributes&) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 4, 4, "cross_entropy_grad"));
  return std::vector<TensorType>{inputs[0]};
}

Types InferTokenScore(TypeSpan inputs, const Attributes&) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 4, 4, "token_score"));
  return std::vector<TensorType>{inputs[2], inputs[2]};
}

Work CrossEntropyCost(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {4.0 * Elements(inputs[0]), Bytes(inputs) + Bytes(outputs)};
}

ValueIds LossSumGradient(GradientContext& context) {
  const graph::Node& node = context.node;
  const bool f64 = context.graph->value(node.inputs[0]).type.dtype == DType::kF64;
  const ValueId weight = context.graph->Emit1(
      kLossWeight, "d_" + node.name, {node.inputs[2]},
      {{"scale", node.attributes.Float("scale")}, {"f64", static_cast<std::int64_t>(f64)}});
  // d(target) is −w; cross_entropy_grad is defined for this pair of gradients and reads w only.
  return {weight, weight, kNoValue};
}

ValueIds CrossEntropyGradient(GradientContext& context) {
  const graph::Node& node = context.node;
  ENGINE_CHECK(context.d_outputs[0] == context.d_outputs[1], "{} feeds something else than loss_sum",
               node.name);
  return {context.graph->Emit1(kCrossEntropyGrad, "d_" + node.name,
                               {node.inputs[0], node.inputs[1], node.outputs[0], context.d_outputs[0]},
                               node.attributes),
          kNoValue};
}

std::vector<Signature> CrossEntropySignatures(TypeSpan inputs, const Attributes&, const AxisRule& rule) {
  const int classes = inputs[0].shape.rank() - 1;
  const Placement r = Placement::R();
  std::vector<Signature> signatures = {
      {{Placement::S(classes), r}, {Placement::P(Reduction::kLogSumExp), Placement::P()}}};
  for (int dim = 0; dim < classes; ++dim) {
    const Placement p = Placement::S(dim);
    signatures.push_back({{p, p}, {p, p}});
  }
  signatures.push_back({{r, r}, {r, r}, rule.parameters.Has(Dim::kVocab)});
  return signatures;
}

std::vector<Signature> CrossEntropyGradSignatures(TypeSpan inputs, const Attributes&, const AxisRule& rule) {
  const int classes = inputs[0].shape.rank() - 1;
  const Placement r = Placement::R();
  std::vector<Signature> signatures = {{{Placement::S(classes), r, r, r}, {Placement::S(classes)}}};
  for (int dim = 0; dim < classes; ++dim) {
    const Placement p = Placement::S(dim);
    signatures.push_back({{p, p, p, p}, {p}});
  }
  signatures.push_back({{r, r, r, r}, {r}, rule.parameters.Has(Dim::kVocab)});
  return signatures;
}

std::vector<Signature> TokenScoreSignatures(TypeSpan inputs, const Attributes&, const AxisRule& rule) {
  const int classes = inputs[0].shape.rank() - 1;
  const Placement r = Placement::R();
  std::vector<Signature> signatures = {{{Placement::S(classes), r, r, r}, {r, Placement::P()}}};
  for (int dim = 0; dim < classes; ++dim) {
    const Placement p = Placement::S(dim);
    signatures.push_back({{p, p, p, p}, {p, p}});
  }
  signatures.push_back({{r, r, r, r}, {r, r}, rule.parameters.Has(Dim::kVocab)});
  return signatures;
}

std::vector<Signature> LossSumSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  const Placement r = Placement::R();
  std::vector<Signature> signatures = {{{r, r, r}, {r}}};
  for (int dim = 0; dim < inputs[2].shape.rank(); ++dim) {
    const Placement p = Placement::S(dim);
    signatures.push_back({{p, p, p}, {Placement::P()}});
  }
  return signatures;
}

std::vector<Signature> LossWeightSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  return ElementwiseSignatures(inputs[0].shape.rank(), 1, 1);
}

}  // namespace

const OpDef kCrossEntropy{.name = "cross_entropy",
                          .infer = InferCrossEntropy,
                          .work = CrossEntropyCost,
                          .gradient = CrossEntropyGradient,
                          .signatures = CrossEntropySignatures};
const OpDef kCrossEntropyGrad{.name = "cross_entropy_grad",
                              .infer = InferCrossEntropyGrad,
                              .work = CrossEntropyCost,
                              .signatures = CrossEntropyGradSignatures,
                              .in_place_input = 0};
const OpDef kLossWeight{.name = "loss_weight",
                        .infer = InferLossWeight,
                        .work = CrossEntropyCost,
                        .signatures = LossWeightSignatures};
const OpDef kLossSum{.name = "loss_sum",
                     .infer = InferLossSum,
                     .work = CrossEntropyCost,
                     .gradient = LossSumGradient,
                     .signatures = LossSumSignatures,
                     .accumulates = 1};
const OpDef kTokenScore{.name = "token_score",
                        .infer = InferTokenScore,
                        .work = CrossEntropyCost,
                        .signatures = TokenScoreSignatures};

}  // namespace engine::ops
