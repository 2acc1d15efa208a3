// Losses of a router
//
//   balance_loss(logits[b, …, E], count[g, E]) → Σ over tokens of E/(k·S) · Σ_e count[group, e] · p_e, float64
//     p = softmax(logits), or σ(logits) or √log(1 + e^logits) as shares of their sum + 1e-20, by attribute score; count: how many of the k·S choices of a
//     group of samples fell on each expert; its S tokens (attribute tokens) are those of b/g samples. The mean over all tokens is 1
//     where every expert is chosen alike: Switch Transformer's loss (arXiv:2101.03961, equation 4), for each group by itself
//     and divided by k (of groups of one sample: seq_aux_loss of Megatron-LM; DeepSeek-V3, arXiv:2412.19437, equations 17
//     to 20).
//   router_z_loss(logits) → Σ over tokens of (log Σ_e exp(logits))², float64 (ST-MoE, arXiv:2202.08906, equation 5)
//   router_entropy(logits) → Σ over tokens of −Σ_e p_e · log p_e, float64: how evenly a router spreads a token, logged; it is
//     at most log E, and has no gradient
//   balance_loss_grad(logits, count) → d_logits;  router_z_loss_grad(logits) → d_logits
//
// Attribute scale is the factor of the loss in the gradient: its weight by the tokens of the global batch, times the loss
// scale of the control block (plan/control.h); the values are not scaled. The counts are constants. Both sums accumulate over microbatches.
//
// Placement: sums over tokens are partial where tokens are split; counts are those of whole samples, and those of one group
// of several samples are whole.
//
// Backward saves logits and count.
#include "engine/ops/common.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

Types InferRouterLoss(TypeSpan inputs, const Attributes&) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 1, 2, "a router's loss"));
  const Shape& logits = inputs[0].shape;
  if (logits.rank() < 2) return Internal("a router's loss of {}", logits.ToString());
  if (inputs.size() == 2 && (inputs[1].shape.rank() != 2 || inputs[1].shape[1] != logits[logits.rank() - 1] ||
                             logits[0] % std::max<std::int64_t>(1, inputs[1].shape[0]) != 0))
    return Internal("counts {} of {}", inputs[1].shape.ToString(), logits.ToString());
  return std::vector<TensorType>{{.shape = {}, .dtype = DType::kF64}};
}
Types InferRouterLossGrad(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(InferRouterLoss(inputs, attributes).status());
  return std::vector<TensorType>{inputs[0]};
}

Work LossWork(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {6.0 * Elements(inputs[0]), Bytes(inputs) + Bytes(outputs)};
}

ValueIds BalanceGradient(GradientContext& context) {
  const graph::Node& node = context.node;
  return {context.graph->Emit1(kBalanceLossGrad, "d_" + node.name, node.inputs, node.attributes), kNoValue};
}
ValueIds ZLossGradient(GradientContext& context) {
  const graph::Node& node = context.node;
  return {context.graph->Emit1(kRouterZLossGrad, "d_" + node.name, node.inputs, node.attributes)};
}

// Of logits (and counts, which follow the samples); `sums`: what is made are sums over tokens.
std::vector<Signature> TokenSignatures(TypeSpan inputs, const AxisRule& rule, bool sums) {
  std::vector<Signature> signatures;
  const auto add = [&](Placement logits, Placement counts) {
    Signature signature = {{logits}, {sums && logits.split() ? Placement::P() : logits}};
    if (inputs.size() == 2) signature.inputs.push_back(counts);
    signatures.push_back(std::move(signature));
  };
  add(Placement::R(), Placement::R());
  const bool one_group = inputs.size() == 2 && inputs[1].shape[0] == 1 && inputs[0].shape[0] > 1;
  const bool groups = inputs.size() == 2 && inputs[1].shape[0] != inputs[0].shape[0];  // of several samples
  if (!groups || one_group || !rule.activations.Has(Dim::kSequence))                   // as tally has them
    add(Placement::S(0), one_group ? Placement::R() : Placement::S(0));
  for (int dim = 1; dim + 1 < inputs[0].shape.rank(); ++dim) add(Placement::S(dim), Placement::R());
  return signatures;
}
std::vector<Signature> RouterLossSignatures(TypeSpan inputs, const Attributes&, const AxisRule& rule) {
  return TokenSignatures(inputs, rule, true);
}
std::vector<Signature> RouterLossGradSignatures(TypeSpan inputs, const Attributes&, const AxisRule& rule) {
  return TokenSignatures(inputs, rule, false);
}

}  // namespace

const OpDef kBalanceLoss{.name = "balance_loss",
                         .infer = InferRouterLoss,
                         .work = LossWork,
                         .gradient = BalanceGradient,
                         .signatures = RouterLossSignatures,
                         .accumulates = 1};
const OpDef kBalanceLossGrad{.name = "balance_loss_grad",
                             .infer = InferRouterLossGrad,
                             .work = LossWork,
                             .signatures = RouterLossGradSignatures};
const OpDef kRouterZLoss{.name = "router_z_loss",
                         .infer = InferRouterLoss,
                         .work = LossWork,
                         .gradient = ZLossGradient,
                         .signatures = RouterLossSignatures,
                         .accumulates = 1};
const OpDef kRouterEntropy{.name = "router_entropy",
                           .infer = InferRouterLoss,
                           .work = LossWork,
                           .signatures = RouterLossSignatures,
                           .accumulates = 1};
const OpDef kRouterZLossGrad{.name = "router_z_loss_grad",
                             .infer = InferRouterLossGrad,
                             .work = LossWork,
                             .signatures = RouterLossGradSignatures};

}  // namespace engine::ops
