// Select token
//
//   select_token(x[B, S, D…]):         y[b, …] = x[b, index, …]
//   select_token_grad(dy[B, D…]):      dx[b, s, …] = dy[b, …] where s = index, else 0
//
// One token stands for its sequence, as a class head reads it (BERT's [CLS], arXiv:1810.04805). Attribute index is the
// token's logical place; of select_token_grad, length is S and meaning is what that dim means (graph::Dim).
//
// Placement: where the sequence is split, the rank that holds the token gives it and the others give zeros, so that y is
// partial; dx is then made of a whole dy without exchange.
//
// Backward saves nothing.
#include "engine/ops/common.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

constexpr int kSequence = 1;  // the dim that is taken away

Types InferSelectToken(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 1, 1, "select_token"));
  const Shape& x = inputs[0].shape;
  const std::int64_t index = attributes.Int("index");
  if (x.rank() < 2 || index < 0 || index >= x[kSequence])
    return Internal("select_token: {} has no token {}", x.ToString(), index);
  TensorType y = Leading(inputs[0], kSequence, inputs[0].dtype);
  for (int dim = kSequence + 1; dim < x.rank(); ++dim) y.Append(inputs[0], dim);
  return std::vector<TensorType>{y};
}

Types InferSelectTokenGrad(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 1, 1, "select_token_grad"));
  TensorType dx = Leading(inputs[0], kSequence, inputs[0].dtype);
  dx.shape.push_back(attributes.Int("length"));
  dx.dims.Set(kSequence, static_cast<Dim>(attributes.Int("meaning")));
  for (int dim = kSequence; dim < inputs[0].shape.rank(); ++dim) dx.Append(inputs[0], dim);
  return std::vector<TensorType>{dx};
}

Work SelectTokenCost(TypeSpan, TypeSpan outputs, const Attributes&) {
  return {.flops = 0, .bytes = 2 * Bytes(outputs)};
}
Work SelectTokenGradCost(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {.flops = 0, .bytes = Bytes(inputs) + Bytes(outputs)};
}

ValueIds SelectTokenGradient(GradientContext& context) {
  const graph::Node& node = context.node;
  const TensorType& x = context.graph->value(node.inputs[0]).type;
  return {context.graph->Emit1(kSelectTokenGrad, "d_" + node.name, {context.d_outputs[0]},
                               {{"index", node.attributes.Int("index")},
                                {"length", x.shape[kSequence]},
                                {"meaning", static_cast<std::int64_t>(x.meaning(kSequence))}})};
}

// The dim of x that dim `of_y` of y is.
int DimOfX(int of_y) { return of_y < kSequence ? of_y : of_y + 1; }

std::vector<Signature> SelectTokenSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  std::vector<Signature> signatures = {{{Placement::R()}, {Placement::R()}},
                                       {{Placement::S(kSequence)}, {Placement::P()}}};
  for (int dim = 0; dim + 1 < inputs[0].shape.rank(); ++dim)
    signatures.push_back({{Placement::S(DimOfX(dim))}, {Placement::S(dim)}});
  return signatures;
}

// An axis that splits features keeps tokens whole; others may begin the split of the sequence here.
std::vector<Signature> SelectTokenGradSignatures(TypeSpan inputs, const Attributes&, const AxisRule& rule) {
  const Signature whole = {{Placement::R()}, {Placement::R()}};
  const Signature split = {{Placement::R()}, {Placement::S(kSequence)}};
  std::vector<Signature> signatures = {split, whole};
  if (rule.parameters.Has(Dim::kFeature)) signatures = {whole, split};
  for (int dim = 0; dim < inputs[0].shape.rank(); ++dim)
    signatures.push_back({{Placement::S(dim)}, {Placement::S(DimOfX(dim))}});
  return signatures;
}

}  // namespace

const OpDef kSelectToken{.name = "select_token",
                         .infer = InferSelectToken,
                         .work = SelectTokenCost,
                         .gradient = SelectTokenGradient,
                         .signatures = SelectTokenSignatures};
const OpDef kSelectTokenGrad{.name = "select_token_grad",
                             .infer = InferSelectTokenGrad,
                             .work = SelectTokenGradCost,
                             .signatures = SelectTokenGradSignatures};

}  // namespace engine::ops
