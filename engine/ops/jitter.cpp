// Jitter: noise on what a router reads (Switch Transformer, arXiv:2101.03961, section 2.2)
//
//   jitter(x):        y = x · u,   u uniform in [1 − eps, 1 + eps)
//   jitter_grad(dy):  dx = dy · u,  with the same u
//
// Attributes eps and stream (a name; a recomputed copy keeps the original's). u(element) is a function of (seed, stream,
// iteration, logical element index, where dim 0 counts samples of the global batch), so that it is the same in every layout
// and microbatching, as the masks of dropout are.
//
// Backward saves nothing.
#include "engine/ops/common.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

Types InferJitter(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 1, 1, "jitter"));
  const double eps = attributes.Float("eps");
  if (!(eps >= 0 && eps < 1)) return Internal("jitter of {}", eps);
  return std::vector<TensorType>{inputs[0]};
}

Work JitterWork(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {2.0 * Elements(inputs[0]), Bytes(inputs) + Bytes(outputs)};
}

ValueIds JitterGradient(GradientContext& context) {
  return {context.graph->Emit1(kJitterGrad, "d_" + context.node.name, {context.d_outputs[0]},
                               context.node.attributes)};
}

std::vector<Signature> JitterSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  return ElementwiseSignatures(inputs[0].shape.rank(), 1, 1);
}

}  // namespace

// Cheap to make again, as activation functions are, and as large as what it reads.
const OpDef kJitter{.name = "jitter",
                    .infer = InferJitter,
                    .family = Family::kActivation,
                    .work = JitterWork,
                    .gradient = JitterGradient,
                    .signatures = JitterSignatures};
const OpDef kJitterGrad{.name = "jitter_grad",
                        .infer = InferJitter,
                        .work = JitterWork,
                        .signatures = JitterSignatures,
                        .in_place_input = 0};

}  // namespace engine::ops
