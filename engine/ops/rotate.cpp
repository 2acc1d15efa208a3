// Rotary position embedding of heads
//
//   rotate(x[B, S, N, E], positions[B, S] int32) → y[B, S, N, E]
//     Each head of x is turned to its token's position: pairs, frequencies, attributes and sources are those of
//     graph/rotary.h, computed in float64. positions are the tokens' positions in their sequence, so that any slice of a
//     sequence rotates right.
//   rotate_grad(dy, positions) → dx: turned back by the same angles, with the same factor
//
// qkv_split (qkv.cpp) does the same on the way; rotate is for queries and keys between which and their projection something
// stands, a norm say. Its name is not `rotary`, which is the fused op that turns a packed projection in place.
//
// Backward saves nothing but positions.
#include "engine/graph/rotary.h"
#include "engine/ops/common.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

Types InferRotate(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 2, 2, "rotate"));
  const Shape& x = inputs[0].shape;
  const Shape& positions = inputs[1].shape;
  if (x.rank() != 4 || positions.rank() != 2 || positions[0] != x[0] || positions[1] != x[1]) {
    return Internal("rotate of {} to positions {}", x.ToString(), positions.ToString());
  }
  RETURN_IF_ERROR(graph::CheckRotary(attributes, x[3]));
  return std::vector<TensorType>{inputs[0]};
}

// Of each turned element, two products and a sum.
Work RotateWork(TypeSpan inputs, TypeSpan outputs, const Attributes& attributes) {
  const std::int64_t head = inputs[0].shape[3];
  const double turned =
      static_cast<double>(attributes.Int("width", head)) / static_cast<double>(head) * Elements(inputs[0]);
  return {3.0 * turned, Bytes(inputs) + Bytes(outputs)};
}

ValueIds RotateGradient(GradientContext& context) {
  const graph::Node& node = context.node;
  return {context.graph->Emit1(kRotateGrad, "d_" + node.name, {context.d_outputs[0], node.inputs[1]},
                               node.attributes),
          kNoValue};
}

std::vector<Signature> RotateSignatures(TypeSpan, const Attributes&, const AxisRule&) {
  const Placement r = Placement::R();
  const Placement heads = Placement::S(2);
  std::vector<Signature> signatures = {{{heads, r}, {heads}}, {{r, r}, {r}}};
  for (int dim : {1, 0}) {
    const Placement p = Placement::S(dim);
    signatures.push_back({{p, p}, {p}});
  }
  return signatures;
}

}  // namespace

const OpDef kRotate{.name = "rotate",
                    .infer = InferRotate,
                    .work = RotateWork,
                    .gradient = RotateGradient,
                    .signatures = RotateSignatures,
                    .in_place_input = 0};
const OpDef kRotateGrad{.name = "rotate_grad",
                        .infer = InferRotate,
                        .work = RotateWork,
                        .signatures = RotateSignatures,
                        .in_place_input = 0};

}  // namespace engine::ops
