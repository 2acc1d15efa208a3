// Add: y = a + b, elementwise, equal shapes. The residual connection, and the sum of a value's gradients.
//
// Placement: any split, replicated, or partial with partial (a sum of sums).
// Backward saves nothing: both inputs get dy.
#include "engine/ops/common.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

Types InferAdd(TypeSpan inputs, const Attributes&) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 2, 2, "add"));
  if (inputs[0].shape != inputs[1].shape) {
    return Internal("{} + {}", inputs[0].shape.ToString(), inputs[1].shape.ToString());
  }
  return std::vector<TensorType>{inputs[0]};
}

Work AddCost(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {Elements(outputs[0]), Bytes(inputs) + Bytes(outputs)};
}

ValueIds AddGradient(GradientContext& context) { return {context.d_outputs[0], context.d_outputs[0]}; }

std::vector<Signature> AddSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  std::vector<Signature> signatures = ElementwiseSignatures(inputs[0].shape.rank(), 2, 1);
  signatures.push_back({{Placement::P(), Placement::P()}, {Placement::P()}});
  return signatures;
}

}  // namespace

const OpDef kAdd{.name = "add",
                 .infer = InferAdd,
                 .work = AddCost,
                 .gradient = AddGradient,
                 .signatures = AddSignatures,
                 .commutes = true,
                 .in_place_input = 0};

}  // namespace engine::ops
