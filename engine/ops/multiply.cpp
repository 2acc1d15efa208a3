// Multiply: y = a · b, elementwise, equal shapes
//
//   da = dy · b,   db = dy · a
//
// Placement: any split, or replicated.
//
// Backward saves a and b.
#include "engine/ops/common.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

Types InferMultiply(TypeSpan inputs, const Attributes&) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 2, 2, "multiply"));
  if (inputs[0].shape != inputs[1].shape) {
    return Internal("{} · {}", inputs[0].shape.ToString(), inputs[1].shape.ToString());
  }
  return std::vector<TensorType>{inputs[0]};
}

Work MultiplyWork(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {Elements(outputs[0]), Bytes(inputs) + Bytes(outputs)};
}

ValueIds MultiplyGradient(GradientContext& context) {
  const graph::Node& node = context.node;
  const auto times = [&](size_t other, const char* suffix) {
    return context.graph->Emit1(kMultiply, "d_" + node.name + suffix,
                                {context.d_outputs[0], node.inputs[other]});
  };
  const ValueId d_a = times(1, ".a");
  return {d_a, times(0, ".b")};
}

std::vector<Signature> MultiplySignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  return ElementwiseSignatures(inputs[0].shape.rank(), 2, 1);
}

}  // namespace

const OpDef kMultiply{.name = "multiply",
                      .infer = InferMultiply,
                      .work = MultiplyWork,
                      .gradient = MultiplyGradient,
                      .signatures = MultiplySignatures,
                      .commutes = true,
                      .in_place_input = 0};

}  // namespace engine::ops
