// Gated linear units (Dauphin et al., arXiv:1612.08083; Shazeer, arXiv:2002.05202): GLU, ReGLU, GeGLU
//
//   glu(x[…, 2, F]) → y[…, F]
//     y[…, f] = act(g) · u,   g = x[…, 0, f],   u = x[…, 1, f]
//   glu_grad(x, dy) → dx
//     dg = dy · u · act'(g),   du = dy · act(g)
//
// Attribute kind: act, one of kGateKinds (graph/activation.h).
//
// Backward saves x.
#include "engine/graph/activation.h"
#include "engine/ops/common.h"
#include "engine/ops/gated.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

absl::Status ExpectGate(const Attributes& attributes) {
  const std::string& kind = attributes.String("kind");
  if (graph::FindActivation(graph::kGateKinds, kind) != nullptr) return absl::OkStatus();
  return Internal("glu with a gate of kind {}", kind);
}

Types InferGlu(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectGate(attributes));
  return InferGated(inputs, "glu");
}
Types InferGluGrad(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 2, 2, "glu_grad"));
  RETURN_IF_ERROR(ExpectGate(attributes));
  return std::vector<TensorType>{inputs[0]};
}

// As gelu counts its activation (8, and 16 with the derivative); a product more forward, two more backward.
Work GluWork(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {9.0 * Elements(outputs[0]), Bytes(inputs) + Bytes(outputs)};
}
Work GluGradWork(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {18.0 * Elements(inputs[1]), Bytes(inputs) + Bytes(outputs)};
}

ValueIds GluGradient(GradientContext& context) {
  return {context.graph->Emit1(kGluGrad, "d_" + context.node.name,
                               {context.node.inputs[0], context.d_outputs[0]}, context.node.attributes)};
}

std::vector<Signature> GluSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  return GatedSignatures(inputs[0].shape, false);
}
std::vector<Signature> GluGradSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  return GatedSignatures(inputs[0].shape, true);
}

}  // namespace

const OpDef kGlu{.name = "glu",
                 .infer = InferGlu,
                 .family = Family::kActivation,
                 .work = GluWork,
                 .gradient = GluGradient,
                 .signatures = GluSignatures};
const OpDef kGluGrad{.name = "glu_grad",
                     .infer = InferGluGrad,
                     .family = Family::kActivation,
                     .work = GluGradWork,
                     .signatures = GluGradSignatures};

}  // namespace engine::ops
