// SwiGLU (Shazeer, arXiv:2002.05202)
//
//   swiglu(x[B, S, 2, F]) → y[B, S, F]
//     y[…, f] = silu(g) · u,   g = x[…, 0, f],   u = x[…, 1, f],   silu(z) = z · σ(z)
//   swiglu_grad(x, dy) → dx
//     dg = dy · u · σ(g)(1 + g(1 − σ(g))),   du = dy · silu(g)
//
// Backward saves x.
#include "engine/ops/common.h"
#include "engine/ops/gated.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

Types InferSwiglu(TypeSpan inputs, const Attributes&) { return InferGated(inputs, "swiglu"); }
Types InferSwigluGrad(TypeSpan inputs, const Attributes&) { return std::vector<TensorType>{inputs[0]}; }

Work SwigluCost(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {6.0 * Elements(outputs[0]), Bytes(inputs) + Bytes(outputs)};
}
Work SwigluGradCost(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {12.0 * Elements(inputs[1]), Bytes(inputs) + Bytes(outputs)};
}

ValueIds SwigluGradient(GradientContext& context) {
  return {context.graph->Emit1(kSwigluGrad, "d_" + context.node.name,
                               {context.node.inputs[0], context.d_outputs[0]})};
}

std::vector<Signature> SwigluSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  return GatedSignatures(inputs[0].shape, false);
}
std::vector<Signature> SwigluGradSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  return GatedSignatures(inputs[0].shape, true);
}

}  // namespace

const OpDef kSwiglu{.name = "swiglu",
                    .infer = InferSwiglu,
                    .family = Family::kActivation,
                    .work = SwigluCost,
                    .gradient = SwigluGradient,
                    .signatures = SwigluSignatures};
const OpDef kSwigluGrad{.name = "swiglu_grad",
                        .infer = InferSwigluGrad,
                        .family = Family::kActivation,
                        .work = SwigluGradCost,
                        .signatures = SwigluGradSignatures};

}  // namespace engine::ops
