// Route: which experts a token goes to, and with what weight (Shazeer et al., arXiv:1701.06538)
//
//   route(logits[b…, E], bias[E]?) → choice[b…, k] i32, weight[b…, k]
//     s = softmax(logits), σ(logits) or √log(1 + e^logits), by attribute score
//     choice: the k experts of the largest s + bias, in falling order; of equals the smaller index first
//     weight: s of the chosen, divided by their sum where attribute normalize is 1; times attribute scale
//   route(logits[b…, E], ranks[b…, E]) with attribute select "sinkhorn": the same, but for choice, which is the k experts
//     of the largest ranks (sinkhorn.cpp)
//   route_grad(logits, choice, d_weight) → d_logits[b…, E]
//   route_load(choice[b…, k]) → d_bias[E] += E · (choices of e) − (choices of all), attribute experts E
//   route_count(choice[b…, k]) → count[E], float64, += (choices of e), attribute experts E: what is logged of loads
//
// Attributes: k; score "softmax", "sigmoid" or "sqrtsoftplus"; normalize 0 or 1; scale, 1 unless given. With softmax and
// normalize the weights are a softmax over the chosen logits (Mixtral, arXiv:2401.04088; Megatron-LM's default). Of the other
// scores 1e-20 is added to the sum that they are divided by, as the released models do (DeepSeek-V3). The bias decides
// which experts are chosen and is in no weight (Wang et al., arXiv:2408.15664). What stands in for its gradient is how much more
// than its share an expert is chosen, whose sign alone an update goes by (TrainingSettings::sign_step): E times that, which
// is a whole number, so that an expert in balance gives exactly 0.
//
// Groups (DeepSeek-V3, arXiv:2412.19437, section 2.1.2): with attributes groups, kept and best, the experts lie in groups
// of E/groups, a group's score is the sum of its `best` largest s + bias, and only experts of the `kept` best groups
// can be chosen.
//
// Attribute force, of measurements alone: "even" lets token t choose the experts t·k, t·k + 1, … modulo E; "zipf" the
// k of smallest −log(u)·(e + 1)^0.7 with u of Philox by (token, expert), so that expert e is chosen about as (e + 1)^−0.7.
//
// Everything is at least float32, whatever the model computes in.
//
// Backward saves logits and choice.
#include <array>

#include "engine/ops/common.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

absl::Status ExpectChoice(const Shape& logits, const Attributes& attributes) {
  const std::int64_t experts = logits.rank() < 2 ? 0 : logits[logits.rank() - 1];
  const std::int64_t k = attributes.Int("k");
  if (k < 1 || k > experts) return Internal("route: {} of the experts of {}", k, logits.ToString());
  const std::string& score = attributes.String("score");
  if (score != "softmax" && score != "sigmoid" && score != "sqrtsoftplus")
    return Internal("route with the score {}", score);
  const std::int64_t groups = attributes.Int("groups", 1);
  if (groups < 1 || experts % groups != 0) return Internal("route: {} groups of {} experts", groups, experts);
  if (groups == 1) return absl::OkStatus();
  const std::int64_t kept = attributes.Int("kept");
  const std::int64_t best = attributes.Int("best");
  if (kept < 1 || kept > groups || best < 1 || best > experts / groups || kept * (experts / groups) < k)
    return Internal("route: {} of {} groups by the {} best of each, for {} choices", kept, groups, best, k);
  return absl::OkStatus();
}

// Whether input 1 has a number of each token and expert; else it has one of each expert.
bool HasRanks(TypeSpan inputs, const Attributes& attributes) {
  return inputs.size() == 2 && attributes.Has("select");
}

Types InferRoute(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 1, 2, "route"));
  const TensorType& logits = inputs[0];
  RETURN_IF_ERROR(ExpectChoice(logits.shape, attributes));
  const int lead = logits.shape.rank() - 1;
  if (attributes.Has("select")) {
    if (attributes.String("select") != "sinkhorn" || inputs.size() != 2 || inputs[1].shape != logits.shape)
      return Internal("route: {} inputs, chosen by {}", inputs.size(), attributes.String("select"));
  } else if (inputs.size() == 2 && inputs[1].shape != Shape{logits.shape[lead]}) {
    return Internal("route: bias {} of {}", inputs[1].shape.ToString(), logits.shape.ToString());
  }
  TensorType choice = Leading(logits, lead, DType::kI32);
  choice.shape.push_back(attributes.Int("k"));
  TensorType weight = choice;
  weight.dtype = StatisticsDType(logits.dtype);
  return std::vector<TensorType>{choice, weight};
}

Types InferRouteGrad(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 3, 3, "route_grad"));
  RETURN_IF_ERROR(ExpectChoice(inputs[0].shape, attributes));
  return std::vector<TensorType>{inputs[0]};
}

// A softmax, and a pass for each of the chosen.
Work RouteWork(TypeSpan inputs, TypeSpan outputs, const Attributes& attributes) {
  return {.flops = (4.0 + static_cast<double>(attributes.Int("k"))) * Elements(inputs[0]),
          .bytes = Bytes(inputs) + Bytes(outputs)};
}

Types InferRouteLoad(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 1, 1, "route_load"));
  const DType dtype = attributes.Int("f64", 0) != 0 ? DType::kF64 : DType::kF32;
  return std::vector<TensorType>{{.shape = {attributes.Int("experts")}, .dtype = dtype}};
}

Work RouteLoadWork(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {.flops = Elements(inputs[0]), .bytes = Bytes(inputs) + Bytes(outputs)};
}

Types InferRouteCount(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 1, 1, "route_count"));
  return std::vector<TensorType>{{.shape = {attributes.Int("experts")}, .dtype = DType::kF64}};
}

ValueIds RouteGradient(GradientContext& context) {
  const graph::Node& node = context.node;
  ValueIds gradients(node.inputs.size(), kNoValue);
  if (node.inputs.size() == 2 && context.accumulators[1] != kNoValue) {
    const TensorType& bias = context.graph->value(node.inputs[1]).type;
    const std::array<ValueId, 1> into = {context.accumulators[1]};
    context.graph->Emit(kRouteLoad, "d_" + node.name + ".bias", {node.outputs[0]},
                        {{"experts", bias.shape[0]}, {"f64", std::int64_t{bias.dtype == DType::kF64}}}, into);
  }
  if (context.d_outputs[1] == kNoValue) return gradients;
  gradients[0] = context.graph->Emit1(
      kRouteGrad, "d_" + node.name, {node.inputs[0], node.outputs[0], context.d_outputs[1]}, node.attributes);
  return gradients;
}

// Token by token: any split of the leading dims; the bias is whole.
std::vector<Signature> RouteSignatures(TypeSpan inputs, const Attributes& attributes, const AxisRule&) {
  std::vector<Signature> signatures;
  const auto add = [&](Placement tokens) {
    Signature signature = {{tokens}, {tokens, tokens}};
    if (inputs.size() == 2)
      signature.inputs.push_back(HasRanks(inputs, attributes) ? tokens : Placement::R());
    signatures.push_back(std::move(signature));
  };
  add(Placement::R());
  for (int dim = 0; dim + 1 < inputs[0].shape.rank(); ++dim) add(Placement::S(dim));
  return signatures;
}
std::vector<Signature> RouteLoadSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  std::vector<Signature> signatures = {{{Placement::R()}, {Placement::R()}}};
  for (int dim = 0; dim + 1 < inputs[0].shape.rank(); ++dim)
    signatures.push_back({{Placement::S(dim)}, {Placement::P()}});
  return signatures;
}
std::vector<Signature> RouteGradSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  return ElementwiseSignatures(inputs[0].shape.rank() - 1, 3, 1);
}

}  // namespace

const OpDef kRoute{.name = "route",
                   .infer = InferRoute,
                   .work = RouteWork,
                   .gradient = RouteGradient,
                   .signatures = RouteSignatures};
const OpDef kRouteGrad{
    .name = "route_grad", .infer = InferRouteGrad, .work = RouteWork, .signatures = RouteGradSignatures};
const OpDef kRouteLoad{.name = "route_load",
                       .infer = InferRouteLoad,
                       .work = RouteLoadWork,
                       .signatures = RouteLoadSignatures,
                       .accumulates = 1};
const OpDef kRouteCount{.name = "route_count",
                        .infer = InferRouteCount,
                        .work = RouteLoadWork,
                        .signatures = RouteLoadSignatures,
                        .accumulates = 1};

}  // namespace engine::ops
