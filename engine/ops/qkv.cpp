// The packed projection of attention, apart and together again
//
//   qkv_split(qkv[B, S, K, J, E][, positions]) → q[B, S, K·(J−2), E], k[B, S, K, E], v[B, S, K, E]
//   qkv_merge(dq, dk, dv[, positions]) → dqkv: the gradient; rotation by −angle, packed again
//
// Packing is Megatron-LM's: for each of K kv groups its J−2 query heads, then its key, then its value; query
// head h = group · (J−2) + j. positions [B, S] int32 are the tokens' positions in their sequence, so that any
// slice of a sequence rotates right. Where nothing is rotated there need be none.
//
// With attribute rotary = 1, q and k are rotated by RoPE to the token's position, in float64; graph/rotary.h gives the
// other attributes, with formulas and sources. By default pairs are the two halves of a head, the form of Hugging Face.
//
// Backward saves nothing but positions.
#include <utility>
#include <vector>

#include "engine/graph/rotary.h"
#include "engine/ops/common.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

bool Rotates(const Attributes& attributes) { return attributes.Int("rotary", 0) != 0; }

Types InferSplit(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, Rotates(attributes) ? 2 : 1, 2, "qkv_split"));
  const Shape& x = inputs[0].shape;
  if (x.rank() != 5 || x[3] < 3) return Internal("qkv_split of {}", x.ToString());
  RETURN_IF_ERROR(graph::CheckOptionalRotary(attributes, x[4]));
  TensorType kv = Leading(inputs[0], 3, inputs[0].dtype);
  kv.Append(inputs[0], 4);
  TensorType q = kv;
  q.shape[2] *= x[3] - 2;
  return std::vector<TensorType>{q, kv, kv};
}

Types InferMerge(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, Rotates(attributes) ? 4 : 3, 4, "qkv_merge"));
  const Shape& q = inputs[0].shape;
  const Shape& k = inputs[1].shape;
  RETURN_IF_ERROR(graph::CheckOptionalRotary(attributes, q[3]));
  TensorType packed = Leading(inputs[1], 3, inputs[0].dtype);
  packed.shape.push_back(q[2] / k[2] + 2);
  packed.dims.push_back(Dim::kOther);
  packed.Append(inputs[0], 3);
  return std::vector<TensorType>{packed};
}

Work QkvWork(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {3.0 * Elements(inputs[0]), Bytes(inputs) + Bytes(outputs)};
}

ValueIds QkvSplitGradient(GradientContext& context) {
  const graph::Node& node = context.node;
  ValueIds inputs = {context.d_outputs[0], context.d_outputs[1], context.d_outputs[2]};
  inputs.insert(inputs.end(), node.inputs.begin() + 1, node.inputs.end());
  ValueIds gradients = {context.graph->Emit1(kQkvMerge, "d_" + node.name, inputs, node.attributes)};
  gradients.resize(node.inputs.size(), kNoValue);
  return gradients;
}

// Without positions a node has one input less, the last.
std::vector<Signature> WithInputs(std::vector<Signature> signatures, size_t inputs) {
  for (Signature& signature : signatures) signature.inputs.resize(inputs);
  return signatures;
}

std::vector<Signature> SplitSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  const Placement r = Placement::R();
  const Placement heads = Placement::S(2);
  std::vector<Signature> signatures = {{{heads, r}, {heads, heads, heads}}, {{r, r}, {r, r, r}}};
  for (int dim : {1, 0}) {
    const Placement p = Placement::S(dim);
    signatures.push_back({{p, p}, {p, p, p}});
  }
  return WithInputs(std::move(signatures), inputs.size());
}

std::vector<Signature> MergeSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  const Placement r = Placement::R();
  const Placement heads = Placement::S(2);
  std::vector<Signature> signatures = {{{heads, heads, heads, r}, {heads}}, {{r, r, r, r}, {r}}};
  for (int dim : {1, 0}) {
    const Placement p = Placement::S(dim);
    signatures.push_back({{p, p, p, p}, {p}});
  }
  return WithInputs(std::move(signatures), inputs.size());
}

}  // namespace

const OpDef kQkvSplit{.name = "qkv_split",
                      .infer = InferSplit,
                      .work = QkvWork,
                      .gradient = QkvSplitGradient,
                      .signatures = SplitSignatures};
const OpDef kQkvMerge{
    .name = "qkv_merge", .infer = InferMerge, .work = QkvWork, .signatures = MergeSignatures};

}  // namespace engine::ops
