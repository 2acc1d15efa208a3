// Squared ReLU (So et al., "Primer", arXiv:2109.08668; Megatron-LM's --squared-relu), elementwise
//
//   relu2(x):            y = max(x, 0)²
//   relu2_grad(x, dy):   dx = 2 · max(x, 0) · dy
//
// Backward saves x.
#include "engine/ops/common.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

Types InferRelu2(TypeSpan inputs, const Attributes&) { return std::vector<TensorType>{inputs[0]}; }

// A comparison and a product; the gradient doubles and multiplies once more.
Work Relu2Work(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {2.0 * Elements(inputs[0]), Bytes(inputs) + Bytes(outputs)};
}
Work Relu2GradWork(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {3.0 * Elements(inputs[0]), Bytes(inputs) + Bytes(outputs)};
}

ValueIds Relu2Gradient(GradientContext& context) {
  return {context.graph->Emit1(kRelu2Grad, "d_" + context.node.name,
                               {context.node.inputs[0], context.d_outputs[0]})};
}

std::vector<Signature> Relu2Signatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  return ElementwiseSignatures(inputs[0].shape.rank(), 1, 1);
}
std::vector<Signature> Relu2GradSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  return ElementwiseSignatures(inputs[0].shape.rank(), 2, 1);
}

}  // namespace

const OpDef kRelu2{.name = "relu2",
                   .infer = InferRelu2,
                   .family = Family::kActivation,
                   .work = Relu2Work,
                   .gradient = Relu2Gradient,
                   .signatures = Relu2Signatures};
const OpDef kRelu2Grad{.name = "relu2_grad",
                       .infer = InferRelu2,
                       .family = Family::kActivation,
                       .work = Relu2GradWork,
                       .signatures = Relu2GradSignatures,
                       .in_place_input = 1};

}  // namespace engine::ops
