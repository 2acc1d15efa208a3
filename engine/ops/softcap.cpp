// Soft cap (Bello et al., arXiv:1611.09940; of logits: Gemma Team, arXiv:2408.00118): keeps values between −c and c, c
// being the attribute cap
//
//   softcap(x):            y = c · tanh(x/c)
//   softcap_grad(y, dy):   dx = dy · (1 − (y/c)²)
//
// Backward saves y, which the reader of logits keeps anyway; x may be overwritten.
#include "engine/ops/common.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

Types InferSoftcap(TypeSpan inputs, const Attributes& attributes) {
  if (attributes.Float("cap") <= 0) return Internal("softcap at {}", attributes.Float("cap"));
  return std::vector<TensorType>{inputs[0]};
}

// A quotient, a product, and tanh counted as in gelu.
Work SoftcapWork(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {6.0 * Elements(inputs[0]), Bytes(inputs) + Bytes(outputs)};
}
Work SoftcapGradWork(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {4.0 * Elements(inputs[0]), Bytes(inputs) + Bytes(outputs)};
}

ValueIds SoftcapGradient(GradientContext& context) {
  return {context.graph->Emit1(kSoftcapGrad, "d_" + context.node.name,
                               {context.node.outputs[0], context.d_outputs[0]}, context.node.attributes)};
}

std::vector<Signature> SoftcapSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  return ElementwiseSignatures(inputs[0].shape.rank(), 1, 1);
}
std::vector<Signature> SoftcapGradSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  return ElementwiseSignatures(inputs[0].shape.rank(), 2, 1);
}

}  // namespace

const OpDef kSoftcap{.name = "softcap",
                     .infer = InferSoftcap,
                     .work = SoftcapWork,
                     .gradient = SoftcapGradient,
                     .signatures = SoftcapSignatures,
                     .in_place_input = 0};
const OpDef kSoftcapGrad{.name = "softcap_grad",
                         .infer = InferSoftcap,
                         .work = SoftcapGradWork,
                         .signatures = SoftcapGradSignatures,
                         .in_place_input = 1};

}  // namespace engine::ops
