// Embedding
//
//   embedding(ids[B, S] int32, table[V, D]):   y[b, s, :] = table[ids[b, s], :]
//   embedding_grad(ids, dy):                   d_table[v, :] += Σ_{ids = v} dy[b, s, :]
//
// Attribute offset, 0 where it is not there, is added to the ids: position p of OPT has row p + 2. Attribute replicate = 1 keeps the table whole on a weight-splitting axis (position embeddings). Attribute
// rows of embedding_grad = V (logical, or of the shard when run on one). A rank that holds rows [v0, v1)
// gives zero for ids outside of them and ignores them in the gradient. The gradient adds rows in order of
// (b, s): deterministic.
//
// Placement: a split vocabulary makes y partial (Megatron-LM's vocabulary-parallel embedding,
// arXiv:1909.08053).
//
// Backward saves ids only.
#include <array>

#include "engine/ops/common.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

Types InferEmbedding(TypeSpan inputs, const Attributes&) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 2, 2, "embedding"));
  TensorType y = Leading(inputs[0], inputs[0].shape.rank(), inputs[1].dtype);
  y.Append(inputs[1], 1);
  return std::vector<TensorType>{y};
}

Types InferEmbeddingGrad(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 2, 2, "embedding_grad"));
  const Shape& dy = inputs[1].shape;
  TensorType d_table{
      .shape = {attributes.Int("rows")}, .dtype = StatisticsDType(inputs[1].dtype), .dims = {Dim::kVocab}};
  d_table.Append(inputs[1], dy.rank() - 1);
  return std::vector<TensorType>{d_table};
}

Work EmbeddingCost(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {0, Bytes(inputs[0]) + 2.0 * Bytes(outputs[0])};
}
Work EmbeddingGradCost(TypeSpan inputs, TypeSpan, const Attributes&) {
  return {Elements(inputs[1]), Bytes(inputs[0]) + 3.0 * Bytes(inputs[1])};
}

ValueIds EmbeddingGradient(GradientContext& context) {
  const graph::Node& node = context.node;
  const std::array<ValueId, 1> into = {context.accumulators[1]};
  Attributes attributes = node.attributes;
  attributes.Set("rows", context.graph->value(node.inputs[1]).type.shape[0]);
  const ValueIds d_table = context.graph->Emit(kEmbeddingGrad, "d_" + node.name,
                                               {node.inputs[0], context.d_outputs[0]}, attributes, into);
  return {kNoValue, into[0] == kNoValue ? d_table[0] : kNoValue};
}

std::vector<Signature> EmbeddingSignatures(TypeSpan inputs, const Attributes& attributes,
                                           const AxisRule& rule) {
  const Placement r = Placement::R();
  const bool whole = attributes.Int("replicate", 0) != 0;
  std::vector<Signature> signatures;
  if (rule.parameters.Has(Dim::kVocab) && !whole) {
    signatures.push_back({{r, Placement::S(0)}, {Placement::P()}});
    signatures.push_back({{r, r}, {r}, true});
    return signatures;
  }
  signatures.push_back({{r, r}, {r}});
  for (int dim = inputs[0].shape.rank(); dim-- > 0;)
    signatures.push_back({{Placement::S(dim), r}, {Placement::S(dim)}});
  return signatures;
}

std::vector<Signature> EmbeddingGradSignatures(TypeSpan inputs, const Attributes& attributes,
                                               const AxisRule& rule) {
  const Placement r = Placement::R();
  const bool whole = attributes.Int("replicate", 0) != 0;
  if (rule.parameters.Has(Dim::kVocab) && !whole) return {{{r, r}, {Placement::S(0)}}, {{r, r}, {r}, true}};
  std::vector<Signature> signatures = {{{r, r}, {r}}};
  for (int dim = inputs[0].shape.rank(); dim-- > 0;)
    signatures.push_back({{Placement::S(dim), Placement::S(dim)}, {Placement::P()}});
  return signatures;
}

}  // namespace

const OpDef kEmbedding{.name = "embedding",
                       .infer = InferEmbedding,
                       .work = EmbeddingCost,
                       .gradient = EmbeddingGradient,
                       .signatures = EmbeddingSignatures};
const OpDef kEmbeddingGrad{.name = "embedding_grad",
                           .infer = InferEmbeddingGrad,
                           .work = EmbeddingGradCost,
                           .signatures = EmbeddingGradSignatures,
                           .accumulates = 1};

}  // namespace engine::ops
