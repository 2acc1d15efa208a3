// Bias
//
//   bias_add(x, b):   y[l…, o…] = x[l…, o…] + b[o…]
//   bias_grad(dy):    db[o…] += Σ_l dy[l…, o…]
//
// b has the trailing dims of x (attribute dims of bias_grad: how many). The composition linear → bias_add is
// the specification of a linear with three inputs.
//
// Placement: split leading dims keep b whole and make db partial; a split output dim splits b.
//
// Backward saves nothing.
#include <array>

#include "engine/ops/common.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

Types InferBiasAdd(TypeSpan inputs, const Attributes&) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 2, 2, "bias_add"));
  const int lead = inputs[0].shape.rank() - inputs[1].shape.rank();
  for (int o = 0; o < inputs[1].shape.rank(); ++o) {
    if (lead < 1 || inputs[0].shape[lead + o] != inputs[1].shape[o]) {
      return Internal("x {}, bias {}", inputs[0].shape.ToString(), inputs[1].shape.ToString());
    }
  }
  return std::vector<TensorType>{inputs[0]};
}

Types InferBiasGrad(TypeSpan inputs, const Attributes& attributes) {
  const int dims = static_cast<int>(attributes.Int("dims"));
  const Shape& dy = inputs[0].shape;
  TensorType db{.shape = {}, .dtype = StatisticsDType(inputs[0].dtype)};
  for (int o = dy.rank() - dims; o < dy.rank(); ++o) db.Append(inputs[0], o);
  return std::vector<TensorType>{db};
}

Work BiasWork(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {Elements(inputs[0]), Bytes(inputs) + Bytes(outputs)};
}

ValueIds BiasAddGradient(GradientContext& context) {
  const graph::Node& node = context.node;
  const std::int64_t dims = context.graph->value(node.inputs[1]).type.shape.rank();
  const std::array<ValueId, 1> into = {context.accumulators[1]};
  const ValueIds db =
      context.graph->Emit(kBiasGrad, "d_" + node.name + ".b", {context.d_outputs[0]}, {{"dims", dims}}, into);
  return {context.d_outputs[0], into[0] == kNoValue ? db[0] : kNoValue};
}

std::vector<Signature> BiasAddSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  const int lead = inputs[0].shape.rank() - inputs[1].shape.rank();
  std::vector<Signature> signatures = {{{Placement::R(), Placement::R()}, {Placement::R()}}};
  for (int dim = 0; dim < inputs[0].shape.rank(); ++dim) {
    const Placement bias = dim < lead ? Placement::R() : Placement::S(dim - lead);
    signatures.push_back({{Placement::S(dim), bias}, {Placement::S(dim)}});
  }
  return signatures;
}

std::vector<Signature> BiasGradSignatures(TypeSpan inputs, const Attributes& attributes, const AxisRule&) {
  const int lead = inputs[0].shape.rank() - static_cast<int>(attributes.Int("dims"));
  std::vector<Signature> signatures = {{{Placement::R()}, {Placement::R()}}};
  for (int dim = 0; dim < inputs[0].shape.rank(); ++dim) {
    signatures.push_back({{Placement::S(dim)}, {dim < lead ? Placement::P() : Placement::S(dim - lead)}});
  }
  return signatures;
}

}  // namespace

const OpDef kBiasAdd{.name = "bias_add",
                     .infer = InferBiasAdd,
                     .work = BiasWork,
                     .gradient = BiasAddGradient,
                     .signatures = BiasAddSignatures,
                     .in_place_input = 0};
const OpDef kBiasGrad{.name = "bias_grad",
                      .infer = InferBiasGrad,
                      .work = BiasWork,
                      .signatures = BiasGradSignatures,
                      .accumulates = 1,
                      .sums_rows = true};

}  // namespace engine::ops
