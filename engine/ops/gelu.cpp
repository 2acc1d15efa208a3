// GELU (Hendrycks & Gimpel, arXiv:1606.08415), elementwise
//
//   gelu(x), erf form (attribute tanh = 0):   y = x/2 · (1 + erf(x/√2))
//   gelu(x), tanh form (tanh = 1):            y = x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))
//   gelu_grad(x, dy):                         dx = dy · dy/dx, with the same attribute
//
// The tanh form is GPT-2's "gelu_new".
//
// Backward saves x.
#include "engine/ops/common.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

Types InferGelu(TypeSpan inputs, const Attributes&) { return std::vector<TensorType>{inputs[0]}; }

Work GeluCost(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {8.0 * Elements(inputs[0]), Bytes(inputs) + Bytes(outputs)};
}
Work GeluGradCost(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {16.0 * Elements(inputs[0]), Bytes(inputs) + Bytes(outputs)};
}

ValueIds GeluGradient(GradientContext& context) {
  return {context.graph->Emit1(kGeluGrad, "d_" + context.node.name,
                               {context.node.inputs[0], context.d_outputs[0]}, context.node.attributes)};
}

std::vector<Signature> GeluSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  return ElementwiseSignatures(inputs[0].shape.rank(), 1, 1);
}
std::vector<Signature> GeluGradSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  return ElementwiseSignatures(inputs[0].shape.rank(), 2, 1);
}

}  // namespace

const OpDef kGelu{.name = "gelu",
                  .infer = InferGelu,
                  .family = Family::kActivation,
                  .work = GeluCost,
                  .gradient = GeluGradient,
                  .signatures = GeluSignatures};
const OpDef kGeluGrad{.name = "gelu_grad",
                      .infer = InferGelu,
                      .family = Family::kActivation,
                      .work = GeluGradCost,
                      .signatures = GeluGradSignatures,
                      .in_place_input = 1};

}  // namespace engine::ops
