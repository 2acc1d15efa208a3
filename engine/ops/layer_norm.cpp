// LayerNorm (Ba et al., arXiv:1607.06450) over the last dim
//
//   layer_norm(x[…, D], gamma[D], beta[D]) → y[…, D], mean[…], rstd[…]
//     y = x̂ · γ + β,   x̂ = (x − μ) · rstd,   rstd = 1/√(σ² + ε)
//   layer_norm_grad(dy, x, gamma, mean, rstd) → dx, dγ, dβ
//     dx = rstd · (dy·γ − mean_D(dy·γ) − x̂ · mean_D(dy·γ·x̂))
//     dγ += Σ dy·x̂,   dβ += Σ dy
//
// Attribute epsilon. Statistics are in fp32 or wider.
//
// Placement: any split but that of D; a split leading dim makes dγ and dβ partial.
//
// Backward saves x, mean, rstd.
#include <array>

#include "engine/ops/common.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

TensorType StatisticsOf(const TensorType& x) {
  return Leading(x, x.shape.rank() - 1, StatisticsDType(x.dtype));
}

Types InferForward(TypeSpan inputs, const Attributes&) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 3, 3, "layer_norm"));
  const Shape& x = inputs[0].shape;
  if (inputs[1].shape != Shape{x[x.rank() - 1]} || inputs[2].shape != inputs[1].shape) {
    return Internal("layer_norm of {} with gamma {}", x.ToString(), inputs[1].shape.ToString());
  }
  return std::vector<TensorType>{inputs[0], StatisticsOf(inputs[0]), StatisticsOf(inputs[0])};
}

Types InferBackward(TypeSpan inputs, const Attributes&) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 5, 5, "layer_norm_grad"));
  const TensorType d_gamma{
      .shape = inputs[2].shape, .dtype = StatisticsDType(inputs[2].dtype), .dims = inputs[2].dims};
  return std::vector<TensorType>{inputs[1], d_gamma, d_gamma};
}

Work ForwardCost(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {8.0 * Elements(inputs[0]), Bytes(inputs) + Bytes(outputs)};
}
Work BackwardCost(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {14.0 * Elements(inputs[0]), Bytes(inputs) + Bytes(outputs)};
}

ValueIds Gradient(GradientContext& context) {
  const graph::Node& node = context.node;
  const std::array<ValueId, 3> into = {kNoValue, context.accumulators[1], context.accumulators[2]};
  const ValueIds outputs = context.graph->Emit(
      kLayerNormGrad, "d_" + node.name,
      {context.d_outputs[0], node.inputs[0], node.inputs[1], node.outputs[1], node.outputs[2]},
      node.attributes, into);
  return {outputs[0], into[1] == kNoValue ? outputs[1] : kNoValue,
          into[2] == kNoValue ? outputs[2] : kNoValue};
}

std::vector<Signature> ForwardSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  std::vector<Signature> signatures;
  const auto add = [&](Placement p) {
    signatures.push_back({{p, Placement::R(), Placement::R()}, {p, p, p}});
  };
  add(Placement::R());
  for (int dim = 0; dim + 1 < inputs[0].shape.rank(); ++dim) add(Placement::S(dim));
  return signatures;
}

std::vector<Signature> BackwardSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  std::vector<Signature> signatures;
  const auto add = [&](Placement p, Placement d) {
    signatures.push_back({{p, p, Placement::R(), p, p}, {p, d, d}});
  };
  add(Placement::R(), Placement::R());
  for (int dim = 0; dim + 1 < inputs[0].shape.rank(); ++dim) add(Placement::S(dim), Placement::P());
  return signatures;
}

}  // namespace

const OpDef kLayerNorm{.name = "layer_norm",
                       .infer = InferForward,
                       .family = Family::kNorm,
                       .work = ForwardCost,
                       .gradient = Gradient,
                       .signatures = ForwardSignatures};
const OpDef kLayerNormGrad{.name = "layer_norm_grad",
                           .infer = InferBackward,
                           .family = Family::kNorm,
                           .work = BackwardCost,
                           .signatures = BackwardSignatures,
                           .accumulates = 6};

}  // namespace engine::ops
