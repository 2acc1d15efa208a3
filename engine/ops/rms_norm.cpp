// RMSNorm (Zhang & Sennrich, arXiv:1910.07467) over the last dims of x, as many as gamma has
//
//   rms_norm(x[…, D], gamma[D]) → y[…, D], rstd[…]
//     y = x · rstd · (γ + o),   rstd = 1/√(mean_D(x²) + ε)
//   rms_norm_grad(dy, x, gamma, rstd) → dx, dγ
//     dx = rstd · (dy·(γ + o) − x·rstd² · mean_D(dy·(γ + o)·x))
//     dγ += Σ dy·x·rstd
//
// D stands for one dim or several: gamma[E] on queries x[B, S, H, E] is a norm of each head, gamma[H, E] one over all
// heads. Attributes: epsilon; gain_offset, o (graph/gain.h). rstd is in fp32 or wider.
//
// Placement: any split but those of D; a split leading dim makes dγ partial.
//
// Backward saves x, rstd.
#include <array>

#include "engine/ops/common.h"
#include "engine/ops/norm.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

Types InferRmsNorm(TypeSpan inputs, const Attributes&) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 2, 2, "rms_norm"));
  ASSIGN_OR_RETURN(const int lead, DimsBeforeNorm(inputs[0].shape, inputs[1].shape, "rms_norm"));
  return std::vector<TensorType>{inputs[0], Leading(inputs[0], lead, StatisticsDType(inputs[0].dtype))};
}

Types InferRmsNormGrad(TypeSpan inputs, const Attributes&) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 4, 4, "rms_norm_grad"));
  RETURN_IF_ERROR(DimsBeforeNorm(inputs[1].shape, inputs[2].shape, "rms_norm_grad").status());
  return std::vector<TensorType>{
      inputs[1],
      {.shape = inputs[2].shape, .dtype = StatisticsDType(inputs[2].dtype), .dims = inputs[2].dims}};
}

Work RmsNormCost(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {4.0 * Elements(inputs[0]), Bytes(inputs) + Bytes(outputs)};
}
Work RmsNormGradCost(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {10.0 * Elements(inputs[0]), Bytes(inputs) + Bytes(outputs)};
}

ValueIds RmsNormGradient(GradientContext& context) {
  const graph::Node& node = context.node;
  const std::array<ValueId, 2> into = {kNoValue, context.accumulators[1]};
  const ValueIds outputs = context.graph->Emit(
      kRmsNormGrad, "d_" + node.name, {context.d_outputs[0], node.inputs[0], node.inputs[1], node.outputs[1]},
      node.attributes, into);
  return {outputs[0], into[1] == kNoValue ? outputs[1] : kNoValue};
}

std::vector<Signature> RmsNormSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  std::vector<Signature> signatures = {{{Placement::R(), Placement::R()}, {Placement::R(), Placement::R()}}};
  const int lead = inputs[0].shape.rank() - inputs[1].shape.rank();
  for (int dim = 0; dim < lead; ++dim) {
    const Placement p = Placement::S(dim);
    signatures.push_back({{p, Placement::R()}, {p, p}});
  }
  return signatures;
}

std::vector<Signature> RmsNormGradSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  const Placement r = Placement::R();
  std::vector<Signature> signatures = {{{r, r, r, r}, {r, r}}};
  const int lead = inputs[1].shape.rank() - inputs[2].shape.rank();
  for (int dim = 0; dim < lead; ++dim) {
    const Placement p = Placement::S(dim);
    signatures.push_back({{p, p, r, p}, {p, Placement::P()}});
  }
  return signatures;
}

}  // namespace

const OpDef kRmsNorm{.name = "rms_norm",
                     .infer = InferRmsNorm,
                     .family = Family::kNorm,
                     .work = RmsNormCost,
                     .gradient = RmsNormGradient,
                     .signatures = RmsNormSignatures};
const OpDef kRmsNormGrad{.name = "rms_norm_grad",
                         .infer = InferRmsNormGrad,
                         .family = Family::kNorm,
                         .work = RmsNormGradCost,
                         .signatures = RmsNormGradSignatures,
                         .accumulates = 2};

}  // namespace engine::ops
