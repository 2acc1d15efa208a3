#include "tests/graphs/builder.h"

#include <array>
#include <cmath>
#include <utility>

#include "engine/ops/ops.h"

namespace engine::plan {

using graph::Dim;
using graph::Dims;
using graph::Role;
using graph::ValueId;
using graph::ValueIds;

ValueId GraphBuilder::Input(const std::string& name, const Shape& shape, const Dims& dims) {
  return graph_.AddInput(name, {.shape = shape, .dtype = DType::kI32, .dims = dims});
}

ValueId GraphBuilder::Parameter(const std::string& name, Role role, const Shape& shape, const Dims& dims,
                                const Shape& logical) {
  return graph_.AddParameter(name, {.shape = shape, .dtype = DType::kF32, .dims = dims}, logical,
                             {graph::Initializer::Kind::kNormal, 0.1}, role);
}

ValueId GraphBuilder::Table(const std::string& name, std::int64_t rows) {
  return Parameter(name, Role::kTable, {rows, kWidth}, {Dim::kVocab, Dim::kFeature});
}

ValueId GraphBuilder::Pinned(ValueId value) {
  graph_.value(value).pin = graph::Pin::kResidual;
  return value;
}

ValueId GraphBuilder::Lookup(const std::string& name, ValueId ids, ValueId table) {
  return Pinned(graph_.Emit1(ops::kEmbedding, name, {ids, table}));
}

ValueId GraphBuilder::Places(const std::string& name, ValueId positions, std::int64_t most) {
  const ValueId table =
      Parameter(name + ".weight", Role::kTable, {most, kWidth}, {Dim::kOther, Dim::kFeature});
  return Pinned(graph_.Emit1(ops::kEmbedding, name, {positions, table}, {{"replicate", std::int64_t{1}}}));
}

ValueId GraphBuilder::Add(const std::string& name, ValueId a, ValueId b) {
  return Pinned(graph_.Emit1(ops::kAdd, name, {a, b}));
}

ValueId GraphBuilder::Norm(const std::string& name, ValueId x) {
  const ValueId gain = graph_.AddParameter(name + ".weight",
                                           {.shape = {kWidth}, .dtype = DType::kF32, .dims = {Dim::kFeature}},
                                           {kWidth}, {graph::Initializer::Kind::kOnes}, Role::kGain);
  return graph_.Emit1(ops::kRmsNorm, name, {x, gain}, {{"epsilon", 1e-5}});
}

ValueId GraphBuilder::OffsetNorm(const std::string& name, ValueId x, int dims) {
  graph::TensorType type{.shape = {}, .dtype = DType::kF32};
  const graph::TensorType of = graph_.value(x).type;
  for (int dim = of.shape.rank() - dims; dim < of.shape.rank(); ++dim) type.Append(of, dim);
  const ValueId gain = Parameter(name + ".weight", Role::kGain, type.shape, type.dims);
  return graph_.Emit(ops::kRmsNorm, name, {x, gain}, {{"epsilon", 1e-5}, {"gain_offset", 1.0}})[0];
}

ValueId GraphBuilder::Scaled(const std::string& name, ValueId x, double by) {
  return Pinned(graph_.Emit1(ops::kScale, name, {x}, {{"by", by}}));
}

ValueId GraphBuilder::GatedMlp(const std::string& name, ValueId x) {
  constexpr std::int64_t kWide = 2 * kWidth;
  const ValueId normed = OffsetNorm(name + ".norm", x, 1);
  const ValueId gates = Parameter(name + ".fc1.weight", Role::kMatrix, {2, kWide, kWidth},
                                  {Dim::kOther, Dim::kFeature, Dim::kFeature});
  const ValueId both = graph_.Emit1(ops::kLinear, name + ".fc1", {normed, gates},
                                    {{"in_dims", std::int64_t{1}}, {"out_split", std::int64_t{1}}});
  const ValueId gated = graph_.Emit1(ops::kGlu, name + ".glu", {both}, {{"kind", std::string("gelu_erf")}});
  const graph::Attributes one = {{"in_dims", std::int64_t{1}}};
  const Dims dims = {Dim::kFeature, Dim::kFeature};
  const ValueId third = Parameter(name + ".fc3.weight", Role::kMatrix, {kWide, kWidth}, dims);
  const ValueId open = graph_.Emit1(ops::kLinear, name + ".fc3", {normed, third}, one);
  const ValueId sigmoid =
      graph_.Emit1(ops::kActivation, name + ".sigmoid", {open}, {{"kind", std::string("sigmoid")}});
  const ValueId product = graph_.Emit1(ops::kMultiply, name + ".product", {gated, sigmoid});
  const ValueId narrow = Parameter(name + ".fc2.weight", Role::kMatrix, {kWidth, kWide}, dims);
  return Add(name + ".residual", x,
             Pinned(graph_.Emit1(ops::kLinear, name + ".fc2", {product, narrow}, one)));
}

ValueId GraphBuilder::Mlp(const std::string& name, ValueId x) {
  const graph::Attributes one = {{"in_dims", std::int64_t{1}}};
  const Dims dims = {Dim::kFeature, Dim::kFeature};
  const ValueId normed = Norm(name + ".norm", x);
  const ValueId wide = Parameter(name + ".fc1.weight", Role::kMatrix, {2 * kWidth, kWidth}, dims);
  const ValueId up = graph_.Emit1(ops::kLinear, name + ".fc1", {normed, wide}, one);
  const ValueId active = graph_.Emit1(ops::kGelu, name + ".gelu", {up}, {{"tanh", std::int64_t{1}}});
  const ValueId narrow = Parameter(name + ".fc2.weight", Role::kMatrix, {kWidth, 2 * kWidth}, dims);
  const ValueId down = Pinned(graph_.Emit1(ops::kLinear, name + ".fc2", {active, narrow}, one));
  return Add(name + ".residual", x, down);
}

ValueId GraphBuilder::Heads(const std::string& name, ValueId x, std::int64_t heads) {
  const ValueId w = Parameter(name + ".weight", Role::kMatrix, {heads, kHead, kWidth},
                              {Dim::kHead, Dim::kOther, Dim::kFeature});
  return graph_.Emit1(ops::kLinear, name, {x, w}, {{"in_dims", std::int64_t{1}}});
}

ValueId GraphBuilder::Attention(const std::string& name, ValueId x, ValueId keys, ValueId positions,
                                const std::string& mask, int normed_dims) {
  const ValueId normed = Norm(name + ".norm", x);
  const ValueId from = keys == graph::kNoValue ? normed : keys;
  ValueId q = Heads(name + ".q", normed, kHeads);
  ValueId k = Heads(name + ".k", from, kKvHeads);
  if (normed_dims > 0) {
    q = OffsetNorm(name + ".q_norm", q, normed_dims);
    k = OffsetNorm(name + ".k_norm", k, normed_dims);
  }
  const ValueId v = Heads(name + ".v", from, kKvHeads);
  const ValueId core = graph_.Emit1(ops::kAttention, name + ".core", {q, k, v, positions},
                                    {{"scale", 1 / std::sqrt(static_cast<double>(kHead))}, {"mask", mask}});
  return Project(name, x, core);
}

ValueId GraphBuilder::Project(const std::string& name, ValueId x, ValueId o) {
  const ValueId w = Parameter(name + ".proj.weight", Role::kMatrix, {kWidth, kHeads, kHead},
                              {Dim::kFeature, Dim::kHead, Dim::kOther});
  const ValueId branch =
      Pinned(graph_.Emit1(ops::kLinear, name + ".proj", {o, w}, {{"in_dims", std::int64_t{2}}}));
  return Add(name + ".residual", x, branch);
}

ValueId GraphBuilder::FormedAttention(const std::string& name, ValueId x, ValueId positions,
                                      const AttentionForm& form) {
  const ValueId normed = Norm(name + ".norm", x);
  ValueIds parts;
  if (form.packed) {
    const ValueId w = Parameter(name + ".qkv.weight", Role::kMatrix,
                                {form.kv_heads, kHeads / form.kv_heads + 2, kHead, kWidth},
                                {Dim::kHead, Dim::kOther, Dim::kOther, Dim::kFeature});
    const ValueId qkv =
        graph_.Emit1(ops::kLinear, name + ".qkv", {normed, w}, {{"in_dims", std::int64_t{1}}});
    parts = graph_.Emit(ops::kQkvSplit, name + ".split", {qkv, positions}, form.rotary);
  } else {
    for (const auto& [part, heads] : {std::pair(".q", kHeads), std::pair(".k", form.kv_heads)}) {
      const ValueId straight = Heads(name + part, normed, heads);
      parts.push_back(
          graph_.Emit1(ops::kRotate, name + part + ".turned", {straight, positions}, form.rotary));
    }
    parts.push_back(Heads(name + ".v", normed, form.kv_heads));
  }
  parts.push_back(positions);
  if (form.sinks) parts.push_back(Parameter(name + ".sinks", Role::kBias, {kHeads}, {Dim::kHead}));
  graph::Attributes attributes = form.attributes;
  if (form.distance > 0) {
    attributes.Set("distance", form.distance);
    parts.push_back(
        Parameter(name + ".biases", Role::kBias, {kHeads, 2 * form.distance + 1}, {Dim::kHead, Dim::kOther}));
  }
  attributes.Set("scale", 1 / std::sqrt(static_cast<double>(kHead)));
  return Project(name, x, graph_.Emit(ops::kAttention, name + ".core", parts, attributes)[0]);
}

void GraphBuilder::Loss(const std::string& name, ValueId x, ValueId table, ValueId labels,
                        std::int64_t classes, double count, double weight, const LogitForm& form) {
  ValueId logits = graph_.Emit1(ops::kLinear, name + ".logits", {x, table}, {{"in_dims", std::int64_t{1}}});
  if (!form.bias.empty()) {
    const Shape of = {graph_.value(table).type.shape[0]};
    const ValueId bias = Parameter(form.bias, Role::kBias, of, {Dim::kVocab});
    logits = graph_.Emit1(ops::kBiasAdd, name + ".biased", {logits, bias});
  }
  if (form.by != 1) logits = graph_.Emit1(ops::kScale, name + ".scaled", {logits}, {{"by", form.by}});
  if (form.cap != 0) logits = graph_.Emit1(ops::kSoftcap, name + ".capped", {logits}, {{"cap", form.cap}});
  const ValueIds statistics =
      graph_.Emit(ops::kCrossEntropy, name + ".cross_entropy", {logits, labels}, {{"classes", classes}});
  for (const ValueId statistic : statistics) graph_.value(statistic).pin = graph::Pin::kReplicated;
  const ValueId sum = graph_.AddMetric(name, count, weight);
  graph_.Emit(ops::kLossSum, name, {statistics[0], statistics[1], labels}, {{"scale", weight / count}},
              std::array<ValueId, 1>{sum});
}

}  // namespace engine::plan
