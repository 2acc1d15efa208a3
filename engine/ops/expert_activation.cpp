// Expert activation: between the two products of an expert, with the weights of the routes
//
//   expert_activation(h[R, 2, F] or h[R, F], weight[b, …, k], choice_of[R]) → y[R, F]
//     y[r] = act(h[r, 0]) · h[r, 1] · weight[choice_of[r]]     with a gate (attribute gated 1)
//     y[r] = act(h[r]) · weight[choice_of[r]]                  without
//     0 where choice_of[r] < 0
//   expert_activation_grad(h, weight, choice_of, dy) → dh, d_weight
//     d_weight[c] = Σ_f dy[r, f] · y[r, f] / weight[c] of the row r of choice c, taken from h; 0 where it has none here
//
// A weight scales what its expert gives; here it scales what the last product is made of, as Megatron-LM does, so that the
// sum over a token's experts needs no weights and the last product's output is not saved. Attribute act: one of
// kExpertActivations (graph/activation.h). Attribute features: expert_rows.h.
//
// Placement: rows of tokens go with their weights; along an axis that splits experts or features a weight's gradient is
// partial.
//
// Backward saves h, weight and choice_of.
#include "engine/graph/activation.h"
#include "engine/ops/expert_rows.h"
#include "engine/ops/gated.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

absl::Status ExpectRows(TypeSpan inputs, const Attributes& attributes) {
  const std::string& act = attributes.String("act");
  if (graph::FindActivation(graph::kExpertActivations, act) == nullptr)
    return Internal("expert_activation with {}", act);
  if (inputs[0].shape.rank() == (IsGated(attributes) ? 3 : 2) && inputs[0].shape[0] == inputs[2].shape[0])
    return absl::OkStatus();
  return Internal("expert_activation of {} with {} rows", inputs[0].shape.ToString(),
                  inputs[2].shape.ToString());
}

Types InferExpertActivation(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 3, 3, "expert_activation"));
  RETURN_IF_ERROR(ExpectRows(inputs, attributes));
  if (IsGated(attributes)) return InferGated(inputs.subspan(0, 1), "expert_activation");
  return std::vector<TensorType>{inputs[0]};
}

Types InferExpertActivationGrad(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 4, 4, "expert_activation_grad"));
  RETURN_IF_ERROR(ExpectRows(inputs, attributes));
  return std::vector<TensorType>{inputs[0], inputs[1]};
}

Work ExpertActivationWork(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {10.0 * Elements(outputs[0]), Bytes(inputs) + Bytes(outputs)};
}
Work ExpertActivationGradWork(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {22.0 * Elements(inputs[3]), Bytes(inputs) + Bytes(outputs)};
}

ValueIds ExpertActivationGradient(GradientContext& context) {
  const graph::Node& node = context.node;
  const ValueIds d = context.graph->Emit(
      kExpertActivationGrad, "d_" + node.name,
      {node.inputs[0], node.inputs[1], node.inputs[2], context.d_outputs[0]}, node.attributes);
  return {d[0], d[1], kNoValue};
}

std::vector<Signature> SignaturesOf(TypeSpan inputs, const Attributes& attributes, const AxisRule& rule,
                                    bool backward) {
  std::vector<Signature> signatures;
  const Placement r = Placement::R();
  const Placement s = Placement::S(0);
  const auto add = [&](Placement h, Placement weight, Placement slots, Placement y, Placement d_weight) {
    if (backward) {
      signatures.push_back({{h, weight, slots, y}, {h, d_weight}});
    } else {
      signatures.push_back({{h, weight, slots}, {y}});
    }
  };
  if (rule.parameters.Has(Dim::kExpert)) {
    add(s, r, s, s, Placement::P());
    return signatures;
  }
  add(r, r, r, r, r);
  add(Placement::S(inputs[0].shape.rank() - 1), r, r, Placement::S(1), Placement::P());
  if (WholeTokens(attributes, rule)) return signatures;
  for (int dim = 0; dim + 1 < inputs[1].shape.rank(); ++dim)
    add(s, Placement::S(dim), s, s, Placement::S(dim));
  return signatures;
}

std::vector<Signature> ExpertActivationSignatures(TypeSpan inputs, const Attributes& attributes,
                                                  const AxisRule& rule) {
  return SignaturesOf(inputs, attributes, rule, false);
}
std::vector<Signature> ExpertActivationGradSignatures(TypeSpan inputs, const Attributes& attributes,
                                                      const AxisRule& rule) {
  return SignaturesOf(inputs, attributes, rule, true);
}

}  // namespace

const OpDef kExpertActivation{.name = "expert_activation",
                              .infer = InferExpertActivation,
                              .family = Family::kActivation,
                              .work = ExpertActivationWork,
                              .gradient = ExpertActivationGradient,
                              .signatures = ExpertActivationSignatures};
const OpDef kExpertActivationGrad{.name = "expert_activation_grad",
                                  .infer = InferExpertActivationGrad,
                                  .family = Family::kActivation,
                                  .work = ExpertActivationGradWork,
                                  .signatures = ExpertActivationGradSignatures,
                                  .in_place_input = 0};

}  // namespace engine::ops
