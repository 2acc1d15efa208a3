// Scale: y = s · x, elementwise, s being the attribute by. Scales of embeddings, queries and logits
//
//   dx = s · dy: the same op
//
// Placement: any split, replicated, or partial: s times a sum is the sum of s times its terms.
//
// Backward saves nothing.
#include "engine/ops/common.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

Types InferScale(TypeSpan inputs, const Attributes&) { return std::vector<TensorType>{inputs[0]}; }

Work ScaleWork(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {Elements(inputs[0]), Bytes(inputs) + Bytes(outputs)};
}

ValueIds ScaleGradient(GradientContext& context) {
  return {context.graph->Emit1(kScale, "d_" + context.node.name, {context.d_outputs[0]},
                               context.node.attributes)};
}

std::vector<Signature> ScaleSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  std::vector<Signature> signatures = ElementwiseSignatures(inputs[0].shape.rank(), 1, 1);
  signatures.push_back({{Placement::P()}, {Placement::P()}});
  return signatures;
}

}  // namespace

const OpDef kScale{.name = "scale",
                   .infer = InferScale,
                   .work = ScaleWork,
                   .gradient = ScaleGradient,
                   .signatures = ScaleSignatures,
                   .in_place_input = 0};

}  // namespace engine::ops
