// SwiGLU (Shazeer, arXiv:2002.05202)
//
//   swiglu(x[B, S, 2, F]) → y[B, S, F]
//     y[…, f] = silu(g) · u,   g = x[…, 0, f],   u = x[…, 1, f],   silu(z) = z · σ(z)
//   swiglu_grad(x, dy) → dx
//     dg = dy · u · σ(g)(1 + g(1 − σ(g))),   du = dy · silu(g)
//
// The gate is plane 0 and the up projection plane 1, so that a split of F keeps both planes on a rank.
//
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
    if (dim != x.rank() - 2) y.Append(inputs[0], dim);
  }
  return std::vector<TensorType>{y};
}
Types InferBackward(TypeSpan inputs, const Attributes&) { return std::vector<TensorType>{inputs[0]}; }

Work ForwardCost(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {6.0 * Elements(outputs[0]), Bytes(inputs) + Bytes(outputs)};
}
Work BackwardCost(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
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
std::vector<Signature> ForwardSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  return Signatures(inputs[0].shape, false);
}
std::vector<Signature> BackwardSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  return Signatures(inputs[0].shape, true);
}

}  // namespace

const OpDef kSwiglu{.name = "swiglu",
                    .infer = InferForward,
                    .family = Family::kActivation,
                    .work = ForwardCost,
                    .gradient = Gradient,
                    .signatures = ForwardSignatures};
const OpDef kSwigluGrad{.name = "swiglu_grad",
                        .infer = InferBackward,
                        .family = Family::kActivation,
                        .work = BackwardCost,
                        .signatures = BackwardSignatures};

}  // namespace engine::ops
