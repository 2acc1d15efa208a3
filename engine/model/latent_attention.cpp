#include "engine/model/latent_attention.h"

#include <vector>

#include "engine/graph/attention_inputs.h"
#include "engine/ops/ops.h"

namespace engine::model {
namespace {

using graph::Graph;
using graph::ValueId;

const graph::Node* ProducerOf(const Graph& graph, ValueId value, const graph::OpDef& op) {
  const graph::NodeId producer = graph.value(value).producer;
  if (producer < 0) return nullptr;
  const graph::Node& node = graph.nodes()[static_cast<std::size_t>(producer)];
  return node.op == &op ? &node : nullptr;
}

// The step that makes [B, S, H, …] of [B, S, C] with a parameter of the model.
const graph::Node* OfLatent(const Graph& graph, ValueId value, std::int64_t heads) {
  const graph::Node* linear = ProducerOf(graph, value, ops::kLinear);
  if (linear == nullptr || linear->inputs.size() != 2 || linear->attributes.Int("in_dims") != 1)
    return nullptr;
  const graph::Value& weight = graph.value(linear->inputs[1]);
  const bool fits = weight.kind == graph::ValueKind::kParameter && weight.type.shape.rank() == 3 &&
                    weight.type.shape[0] == heads;
  return fits && graph.value(linear->inputs[0]).type.shape.rank() == 3 ? linear : nullptr;
}

// Whether scores are scaled products and nothing else.
bool IsPlain(const Graph& graph, const graph::Node& attention) {
  std::vector<graph::TensorType> types;
  for (const ValueId input : attention.inputs) types.push_back(graph.value(input).type);
  const graph::AttentionInputs inputs = graph::InputsOfAttention(types, {});
  return !inputs.has_spans() && !inputs.has_sinks() && !inputs.has_biases() &&
         attention.attributes.Float("softcap", 0) == 0 && attention.attributes.Int("alibi", 0) == 0;
}

}  // namespace

std::optional<LatentAttention> FindLatentAttention(const Graph& graph, const graph::Node& attention) {
  if (attention.op != &ops::kAttention || !IsPlain(graph, attention)) return std::nullopt;
  // A product with latents in place of keys is rounded otherwise than training's.
  if (attention.attributes.Int("invariant", 0) != 0) return std::nullopt;
  const Shape& q = graph.value(attention.inputs[0]).type.shape;
  const Shape& v = graph.value(attention.inputs[2]).type.shape;
  const std::int64_t heads = q[2];
  const graph::Node* join = ProducerOf(graph, attention.inputs[1], ops::kJoin);
  const graph::Node* values = OfLatent(graph, attention.inputs[2], heads);
  if (join == nullptr || join->inputs.size() != 2 || values == nullptr) return std::nullopt;
  // Which of the two parts is shared: bit i of the join's attribute says so of part i.
  const std::int64_t bits = join->attributes.Int("shared", 0);
  if (bits != 1 && bits != 2) return std::nullopt;
  const std::size_t shared = bits == 1 ? 0 : 1;
  const graph::Node* keys = OfLatent(graph, join->inputs[1 - shared], heads);
  if (keys == nullptr || keys->inputs[0] != values->inputs[0]) return std::nullopt;
  const std::int64_t shared_width = graph.value(join->inputs[shared]).type.shape[3];
  const std::int64_t latent_width = graph.value(keys->inputs[0]).type.shape[2];
  if (latent_width + shared_width >= heads * (q[3] + v[3])) return std::nullopt;
  return LatentAttention{.latent = keys->inputs[0],
                         .shared = join->inputs[shared],
                         .key_weight = keys->inputs[1],
                         .value_weight = values->inputs[1],
                         .first_shared = shared == 0 ? 0 : q[3] - shared_width,
                         .first_own = shared == 0 ? shared_width : 0};
}

}  // namespace engine::model
