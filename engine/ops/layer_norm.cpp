// LayerNorm (Ba et al., arXiv:1607.06450) over the last dims of x, as many as gamma has
//
//   layer_norm(x[…, D], gamma[D], beta[D]) → y[…, D], mean[…], rstd[…]
//     y = x̂ · (γ + o) + β,   x̂ = (x − μ) · rstd,   rstd = 1/√(σ² + ε)
//   layer_norm_grad(dy, x, gamma, mean, rstd) → dx, dγ, dβ
//     dx = rstd · (dy·(γ + o) − mean_D(dy·(γ + o)) − x̂ · mean_D(dy·(γ + o)·x̂))
//     dγ += Σ dy·x̂,   dβ += Σ dy
//
// D stands for one dim or several. Attributes: epsilon; gain_offset, o (graph/gain.h). Statistics are in fp32 or wider.
//
// Placement: any split but those of D; a split leading dim makes dγ and dβ partial.
//
// Backward saves x, mean, rstd.
#include <array>

#include "engine/ops/common.h"
#include "engine/ops/norm.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

Types InferLayerNorm(TypeSpan inputs, const Attributes&) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 3, 3, "layer_norm"));
  ASSIGN_OR_RETURN(const int lead, DimsBeforeNorm(inputs[0].shape, inputs[1].shape, "layer_norm"));
  if (inputs[2].shape != inputs[1].shape) {
    return Internal("layer_norm with gamma {} and beta {}", inputs[1].shape.ToString(),
                    inputs[2].shape.ToString());
  }
  const TensorType statistics = Leading(inputs[0], lead, StatisticsDType(inputs[0].dtype));
  return std::vector<TensorType>{inputs[0], statistics, statistics};
}

Types InferLayerNormGrad(TypeSpan inputs, const Attributes&) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 5, 5, "layer_norm_grad"));
  RETURN_IF_ERROR(DimsBeforeNorm(inputs[1].shape, inputs[2].shape, "layer_norm_grad").status());
  const TensorType d_gamma{
      .shape = inputs[2].shape, .dtype = StatisticsDType(inputs[2].dtype), .dims = inputs[2].dims};
  return std::vector<TensorType>{inputs[1], d_gamma, d_gamma};
}

Work LayerNormCost(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {8.0 * Elements(inputs[0]), Bytes(inputs) + Bytes(outputs)};
}
Work LayerNormGradCost(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {14.0 * Elements(inputs[0]), Bytes(inputs) + Bytes(outputs)};
}

ValueIds LayerNormGradient(GradientContext& context) {
  const graph::Node& node = context.node;
  const std::array<ValueId, 3> into = {kNoValue, context.accumulators[1], context.accumulators[2]};
  const ValueIds outputs = context.graph->Emit(
      kLayerNormGrad, "d_" + node.name,
      {context.d_outputs[0], node.inputs[0], node.inputs[1], node.outputs[1], node.outputs[2]},
      node.attributes, into);
  return {outputs[0], into[1] == kNoValue ? outputs[1] : kNoValue,
          into[2] == kNoValue ? outputs[2] : kNoValue};
}

std::vector<Signature> LayerNormSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  std::vector<Signature> signatures;
  const auto add = [&](Placement p) {
    signatures.push_back({{p, Placement::R(), Placement::R()}, {p, p, p}});
  };
  add(Placement::R());
  const int lead = inputs[0].shape.rank() - inputs[1].shape.rank();
  for (int dim = 0; dim < lead; ++dim) add(Placement::S(dim));
  return signatures;
}

std::vector<Signature> LayerNormGradSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  std::vector<Signature> signatures;
  const auto add = [&](Placement p, Placement d) {
    signatures.push_back({{p, p, Placement::R(), p, p}, {p, d, d}});
  };
  add(Placement::R(), Placement::R());
  const int lead = inputs[1].shape.rank() - inputs[2].shape.rank();
  for (int dim = 0; dim < lead; ++dim) add(Placement::S(dim), Placement::P());
  return signatures;
}

}  // namespace

const OpDef kLayerNorm{.name = "layer_norm",
                       .infer = InferLayerNorm,
                       .family = Family::kNorm,
                       .work = LayerNormCost,
                       .gradient = LayerNormGradient,
                       .signatures = LayerNormSignatures};
const OpDef kLayerNormGrad{.name = "layer_norm_grad",
                           .infer = InferLayerNormGrad,
                           .family = Family::kNorm,
                           .work = LayerNormGradCost,
                           .signatures = LayerNormGradSignatures,
                           .accumulates = 6};

}  // namespace engine::ops
