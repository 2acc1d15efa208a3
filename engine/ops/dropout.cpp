// Dropout (Srivastava et al., JMLR 2014)
//
//   dropout(x):        y = x · keep / (1 − p),   keep ~ Bernoulli(1 − p)
//   dropout_grad(dy):  dx = dy · keep / (1 − p),  with the same mask
//
// Attributes p, rounded to a multiple of 2⁻¹⁶ (base/dropout_draws.h), and stream (a name; a recomputed copy keeps the original's). keep(element) is a function of
// (seed, stream, iteration, logical element index, where dim 0 counts samples of the global batch), so the
// mask is the same in every layout and microbatching.
//
// Backward saves nothing.
#include "engine/ops/common.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

Types InferDropout(TypeSpan inputs, const Attributes&) { return std::vector<TensorType>{inputs[0]}; }

Work DropoutWork(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {2.0 * Elements(inputs[0]), Bytes(inputs) + Bytes(outputs)};
}

ValueIds DropoutGradient(GradientContext& context) {
  return {context.graph->Emit1(kDropoutGrad, "d_" + context.node.name, {context.d_outputs[0]},
                               context.node.attributes)};
}

std::vector<Signature> DropoutSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  return ElementwiseSignatures(inputs[0].shape.rank(), 1, 1);
}

}  // namespace

const OpDef kDropout{.name = "dropout",
                     .infer = InferDropout,
                     .work = DropoutWork,
                     .gradient = DropoutGradient,
                     .signatures = DropoutSignatures,
                     .in_place_input = 0};
// Not in place: its input is also the gradient of the other branch of the residual connection.
const OpDef kDropoutGrad{
    .name = "dropout_grad", .infer = InferDropout, .work = DropoutWork, .signatures = DropoutSignatures};

}  // namespace engine::ops
