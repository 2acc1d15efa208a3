// SwiGLU (Shazeer, arXiv:2002.05202): y[…, f] = silu(x[…, 0, f]) · x[…, 1, f], silu(z) = z · σ(z)
//
//   x is [B, S, 2, F]: gate in plane 0, up in plane 1, so that a split of F keeps both planes on a rank.
//   swiglu_grad(x, dy): d_gate = dy · up · σ(g)(1 + g(1 − σ(g))), d_up = dy · silu(g).
// Backward saves x.
#include "engine/ops/common.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

Types InferForward(TypeSpan inputs, const Attributes&) {
  const Shape& x = inputs[0].shape;
  if (x.rank() < 3 || x[x.rank() - 2] != 2) return Internal("swiglu of {}", x.ToString());
  TensorType y{.shape = {}, .dtype = inputs[0].dtype};
  for (int dim = 0; dim < x.rank(); ++dim) {
    if (dim != x.rank() - 2) y.shape.push_back(x[dim]);
  }
  return std::vector<TensorType>{y};
}
Types InferBackward(TypeSpan inputs, const Attributes&) { return std::vector<TensorType>{inputs[0]}; }

Cost ForwardCost(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {6.0 * Elements(outputs[0]), Bytes(inputs) + Bytes(outputs)};
}
Cost BackwardCost(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {12.0 * Elements(inputs[1]), Bytes(inputs) + Bytes(outputs)};
}

ValueIds Gradient(GradientContext& context) {
  return {context.graph->Emit1(kSwigluGrad, "d_" + context.node.name,
                               {context.node.inputs[0], context.d_outputs[0]})};
}

// Placement of y for a placement of x along `dim`; the plane dim itself may not be split.
std::vector<Signature> Signatures(const Shape& x, bool backward) {
  std::vector<Signature> signatures;
  const auto add = [&](Placement wide, Placement narrow) {
    if (backward) {
      signatures.push_back({{wide, narrow}, {wide}});
    } else {
      signatures.push_back({{wide}, {narrow}});
    }
  };
  add(Placement::R(), Placement::R());
  for (int dim = 0; dim < x.rank() - 2; ++dim) add(Placement::S(dim), Placement::S(dim));
  add(Placement::S(x.rank() - 1), Placement::S(x.rank() - 2));
  return signatures;
}
std::vector<Signature> ForwardSignatures(TypeSpan inputs, const Attributes&, bool) {
  return Signatures(inputs[0].shape, false);
}
std::vector<Signature> BackwardSignatures(TypeSpan inputs, const Attributes&, bool) {
  return Signatures(inputs[0].shape, true);
}

}  // namespace

const OpDef kSwiglu{.name = "swiglu",
                    .infer = InferForward,
                    .cost = ForwardCost,
                    .gradient = Gradient,
                    .signatures = ForwardSignatures};
const OpDef kSwigluGrad{
    .name = "swiglu_grad", .infer = InferBackward, .cost = BackwardCost, .signatures = BackwardSignatures};

}  // namespace engine::ops
