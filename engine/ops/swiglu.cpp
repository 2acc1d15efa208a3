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

Types InferForward(TypeSpan inputs, const Attributes&) { return InferGated(inputs, "swiglu"); }
Types InferBackward(TypeSpan inputs, const Attributes&) { return std::vector<TensorType>{inputs[0]}; }

Work ForwardCost(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {6.0 * Elements(outputs[0]), Bytes(inputs) + Bytes(outputs)};
}
Work BackwardCost(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {12.0 * Elements(inputs[1]), Bytes(inputs) + Bytes(outputs)};
}

ValueIds Gradient(GradientContext& context) {
  return {context.graph->Emit1(kSwigluGrad, "d_" + context.node.name,
                               {context.node.inputs[0], context.d_outputs[0]})};
}

std::vector<Signature> ForwardSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  return GatedSignatures(inputs[0].shape, false);
}
std::vector<Signature> BackwardSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  return GatedSignatures(inputs[0].shape, true);
}

}  // namespace

const OpDef kSwiglu{.name = "swiglu",
                    .infer = InferForward,
                    .family = Family::kActivation,
                    .work = ForwardCost,
                    .gradient = Gradient,
                    .signatures = ForwardSignatures};
const OpDef kSwigluGrad{.name = "swiglu_grad",
                        .infer = InferBackward,
                        .family = Family::kActivation,
                        .work = BackwardCost,
                        .signatures = BackwardSignatures};

}  // namespace engine::ops
