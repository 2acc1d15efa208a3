// Relative position bias (T5: Raffel et al., arXiv:1910.10683)
//
//   relative_bias(table[n, H]) → biases[H, 2M + 1]:   biases[h, d + M] = table[bucket(d), h] for d = −M … M
//   relative_bias_grad(d_biases) → d_table[n, H]:     d_table[b, h] += Σ_{bucket(d) = b} d_biases[h, d + M]
//
// d is how far a key stands behind a query, and bucket(d) that of graph/distance_buckets.h, by the attributes buckets = n,
// distance = M and both_ways (0 or 1). Keys further than M away are of the buckets of −M and M, so that attention needs no
// more (ops/attention.cpp). The gradient adds in order of d, in fp32 or wider.
//
// Placement: heads, with those that attention has of the table where the axis splits weights; the gradient of a sum is the
// sum of gradients, so a partial one stays partial.
//
// Backward saves nothing.
#include <array>

#include "engine/graph/distance_buckets.h"
#include "engine/ops/common.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

using graph::DistanceBuckets;

absl::StatusOr<DistanceBuckets> LawfulBuckets(const Attributes& attributes) {
  const DistanceBuckets of = DistanceBuckets::FromAttributes(attributes);
  if (of.lawful()) return of;
  return Internal("{} buckets {} of distances up to {}", of.buckets, of.both_ways ? "both ways" : "one way",
                  of.distance);
}

Types InferRelativeBias(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 1, 1, "relative_bias"));
  ASSIGN_OR_RETURN(const DistanceBuckets of, LawfulBuckets(attributes));
  const Shape& table = inputs[0].shape;
  if (table.rank() != 2 || table[0] != of.buckets)
    return Internal("a table {} of {} buckets", table.ToString(), of.buckets);
  TensorType biases{.shape = {}, .dtype = inputs[0].dtype};
  biases.Append(inputs[0], 1);
  biases.shape.push_back(2 * of.distance + 1);
  return std::vector<TensorType>{biases};
}

Types InferRelativeBiasGrad(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 1, 1, "relative_bias_grad"));
  ASSIGN_OR_RETURN(const DistanceBuckets of, LawfulBuckets(attributes));
  const Shape& d_biases = inputs[0].shape;
  if (d_biases.rank() != 2 || d_biases[1] != 2 * of.distance + 1)
    return Internal("the gradient of biases {} of distances up to {}", d_biases.ToString(), of.distance);
  TensorType d_table{.shape = {of.buckets}, .dtype = StatisticsDType(inputs[0].dtype), .dims = {Dim::kOther}};
  d_table.Append(inputs[0], 0);
  return std::vector<TensorType>{d_table};
}

Work RelativeBiasWork(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {0, Bytes(inputs) + Bytes(outputs)};
}
Work RelativeBiasGradWork(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {Elements(inputs[0]), Bytes(inputs) + Bytes(outputs)};
}

ValueIds RelativeBiasGradient(GradientContext& context) {
  const graph::Node& node = context.node;
  const std::array<ValueId, 1> into = {context.accumulators[0]};
  const ValueIds d_table =
      context.graph->Emit(kRelativeBiasGrad, "d_" + node.name, {context.d_outputs[0]}, node.attributes, into);
  return {into[0] == kNoValue ? d_table[0] : kNoValue};
}

std::vector<Signature> RelativeBiasSignatures(TypeSpan, const Attributes&, const AxisRule& rule) {
  const Placement r = Placement::R();
  if (rule.parameters.Has(Dim::kHead))
    return {{{Placement::S(1)}, {Placement::S(0)}}, {{r}, {r}, /*fallback=*/true}};
  return {{{r}, {r}}};
}

std::vector<Signature> RelativeBiasGradSignatures(TypeSpan, const Attributes&, const AxisRule& rule) {
  const Placement r = Placement::R();
  const Placement p = Placement::P();
  if (rule.parameters.Has(Dim::kHead))
    return {{{Placement::S(0)}, {Placement::S(1)}}, {{r}, {r}, /*fallback=*/true}};
  return {{{r}, {r}}, {{p}, {p}}};
}

}  // namespace

const OpDef kRelativeBias{.name = "relative_bias",
                          .infer = InferRelativeBias,
                          .work = RelativeBiasWork,
                          .gradient = RelativeBiasGradient,
                          .signatures = RelativeBiasSignatures};
const OpDef kRelativeBiasGrad{.name = "relative_bias_grad",
                              .infer = InferRelativeBiasGrad,
                              .work = RelativeBiasGradWork,
                              .signatures = RelativeBiasGradSignatures,
                              .accumulates = 1};

}  // namespace engine::ops
