// Activations on single elements that have no op of their own
//
//   activation(x):            y = act(x)
//   activation_grad(x, dy):   dx = dy · act'(x);   of relu act'(0) = 0
//
// Attribute kind: act, one of kActivationKinds (graph/activation.h, with the formulas).
//
// Backward saves x.
#include "engine/graph/activation.h"

#include "engine/ops/common.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

Types InferActivation(TypeSpan inputs, const Attributes& attributes) {
  const std::string& kind = attributes.String("kind");
  if (graph::FindActivation(graph::kActivationKinds, kind) == nullptr)
    return Internal("activation of kind {}", kind);
  return std::vector<TensorType>{inputs[0]};
}

// Of those with a sigmoid: exp, sum, quotient, products.
Work ActivationWork(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {5.0 * Elements(inputs[0]), Bytes(inputs) + Bytes(outputs)};
}
Work ActivationGradWork(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {10.0 * Elements(inputs[0]), Bytes(inputs) + Bytes(outputs)};
}

ValueIds ActivationGradient(GradientContext& context) {
  return {context.graph->Emit1(kActivationGrad, "d_" + context.node.name,
                               {context.node.inputs[0], context.d_outputs[0]}, context.node.attributes)};
}

std::vector<Signature> ActivationSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  return ElementwiseSignatures(inputs[0].shape.rank(), 1, 1);
}
std::vector<Signature> ActivationGradSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  return ElementwiseSignatures(inputs[0].shape.rank(), 2, 1);
}

}  // namespace

const OpDef kActivation{.name = "activation",
                        .infer = InferActivation,
                        .family = Family::kActivation,
                        .work = ActivationWork,
                        .gradient = ActivationGradient,
                        .signatures = ActivationSignatures};
const OpDef kActivationGrad{.name = "activation_grad",
                            .infer = InferActivation,
                            .family = Family::kActivation,
                            .work = ActivationGradWork,
                            .signatures = ActivationGradSignatures,
                            .in_place_input = 1};

}  // namespace engine::ops
