#include <cmath>
#include <utility>

#include "engine/base/status.h"
#include "engine/model/modules/modules.h"
#include "engine/ops/ops.h"

namespace engine::model {
namespace {

// q [B, S, H, E], k [B, T, K, E] and v [B, T, K, U].
absl::Status CheckShapes(StepContext& step) {
  const Shape& q = step.type(step.input(0)).shape;
  const Shape& k = step.type(step.input(1)).shape;
  const Shape& v = step.type(step.input(2)).shape;
  if (q.rank() != 4 || k.rank() != 4 || v.rank() != 4) {
    return step.Error(
        fmt::format("queries, keys and values are [B, S, heads, features]; these are {}, {}, {}",
                    q.ToString(), k.ToString(), v.ToString()));
  }
  if (k[0] != v[0] || k[1] != v[1] || k[2] != v[2] || q[0] != k[0] || q[3] != k[3]) {
    return step.Error(fmt::format("keys {} and values {} do not go with queries {}", k.ToString(),
                                  v.ToString(), q.ToString()),
                      "the same samples, queries as wide as keys, and as many keys as values");
  }
  if (q[2] % k[2] != 0) {
    return step.Error(
        fmt::format("{} query heads are not a multiple of {} heads of keys and values", q[2], k[2]),
        "each of those serves equally many query heads");
  }
  return absl::OkStatus();
}

// Documents are places of the sample's sequence: queries and keys have to be of it.
absl::Status CheckDocuments(StepContext& step) {
  const std::int64_t tokens = step.options().sequence;
  const std::int64_t queries = step.type(step.input(0)).shape[1];
  const std::int64_t keys = step.type(step.input(1)).shape[1];
  if (queries == tokens && keys == tokens) return absl::OkStatus();
  return step.Error(
      fmt::format(
          "data.documents = \"masked\" masks documents in sequences of the sample's {} tokens, and these are "
          "{} queries of {} keys",
          tokens, queries, keys),
      "data.documents = \"across\"");
}

// Whether a step relative_bias made it, or it is the parameter of a step pair_bias.
bool IsByDistance(const graph::Graph& graph, const graph::Value& value) {
  return value.producer >= 0 &&
         graph.nodes()[static_cast<std::size_t>(value.producer)].op == &ops::kRelativeBias;
}
bool IsByPair(const graph::Value& value) {
  const Shape& shape = value.type.shape;
  return value.kind == graph::ValueKind::kParameter && shape.rank() == 3 && shape[1] == shape[2];
}

// What the attribute bias names, a bias for each query head and distance or pair of places; kNoValue without it.
absl::StatusOr<graph::ValueId> BiasesOf(StepContext& step) {
  if (!step.Has("bias")) return graph::kNoValue;
  const graph::Value& biases = step.graph().value(step.Get("bias").value);
  if (!IsByDistance(step.graph(), biases) && !IsByPair(biases))
    return step.ErrorIn("bias", fmt::format("'{}' is no bias by distance or by pair", biases.name),
                        "the result of a step { do = \"relative_bias\", heads = \"H\" }, or of pair_bias");
  const std::int64_t tokens = std::max(step.type(step.input(0)).shape[1], step.type(step.input(1)).shape[1]);
  if (IsByPair(biases) && biases.type.shape[1] < tokens)
    return step.ErrorIn("bias",
                        fmt::format("'{}' has biases for {} places, and there are {} tokens", biases.name,
                                    biases.type.shape[1], tokens),
                        fmt::format("places = {}", tokens));
  const graph::TensorType& queries = step.type(step.input(0));
  const std::int64_t heads = queries.shape[2];
  if (biases.type.shape[0] == heads && biases.type.meaning(0) != queries.meaning(2)) {
    return step.ErrorIn(
        "bias",
        fmt::format("the heads of '{}' are a number, so that no layout would divide the {} heads here",
                    biases.name, heads),
        "heads = \"H\" in the step that makes it, the name that queries have");
  }
  if (biases.type.shape[0] == heads) return step.Get("bias").value;
  return step.ErrorIn("bias",
                      fmt::format("'{}' has biases of {} heads, and these are {} query heads", biases.name,
                                  biases.type.shape[0], heads),
                      "as many heads in the step that makes it as queries have");
}

absl::StatusOr<graph::ValueIds> EmitAttention(StepContext& step) {
  RETURN_IF_ERROR(CheckShapes(step));
  const std::string& mask = step.Word("mask");
  const std::int64_t window = step.options().windows ? step.Int("window") : 0;
  if (mask == "none" && window > 0)
    return step.ErrorIn("window", fmt::format("a window of {} needs the mask causal", window), "window = 0");
  const std::int64_t features = step.type(step.input(0)).shape[3];
  const double scale =
      step.Has("scale") ? step.Number("scale") : 1.0 / std::sqrt(static_cast<double>(features));
  graph::Attributes attributes = {{"scale", scale},
                                  {"window", window},
                                  {"dropout", step.options().dropout ? step.Number("dropout") : 0.0},
                                  {"stream", step.path()}};
  if (mask != "causal") attributes.Set("mask", mask);
  if (step.Number("softcap") > 0) attributes.Set("softcap", step.Number("softcap"));
  if (step.Flag("alibi")) {
    if (mask != "causal")
      return step.ErrorIn("alibi", "linear biases need the mask causal", "mask = \"causal\"");
    attributes.Set("alibi", std::int64_t{1});
  }
  if (!step.options().attention_kernel.empty())
    attributes.Set("kernel", std::string(step.options().attention_kernel));
  ASSIGN_OR_RETURN(const graph::ValueId biases, BiasesOf(step));
  if (biases != graph::kNoValue) {
    const Shape& of = step.type(biases).shape;
    const bool pairs = of.rank() == 3;
    attributes.Set(pairs ? "pairs" : "distance", pairs ? of[1] : of[1] / 2);
  }
  graph::ValueIds inputs = {step.input(0), step.input(1), step.input(2)};
  if (mask == "causal" || step.Number("dropout") > 0 || biases != graph::kNoValue) {
    if (!step.Has("positions"))
      return step.ErrorIn("positions",
                          "a causal mask, dropout and a bias go by the positions of the queries, and there "
                          "is no value 'positions'",
                          "inputs = { positions = \"i32[B,S]\", … } in [model]; or positions = \"NAME\"");
    inputs.push_back(step.OfSequence(step.Get("positions").value));
  }
  if (step.options().documents) {
    RETURN_IF_ERROR(CheckDocuments(step));
    inputs.push_back(step.GraphInput(kDocumentSpans));
  }
  if (step.Flag("sinks")) {
    Sizes heads = step.TrailingSizes(step.input(0), 2);
    const Sizes of_heads{Shape{heads.shape[0]}, Shape{heads.logical[0]}, {heads.dims[0]}};
    ASSIGN_OR_RETURN(const graph::ValueId sinks,
                     step.Parameter("sinks", graph::Role::kBias, of_heads, StepContext::Zeros()));
    inputs.push_back(sinks);
  }
  if (biases != graph::kNoValue) inputs.push_back(biases);
  ASSIGN_OR_RETURN(const graph::ValueIds results,
                   step.Emit(ops::kAttention, step.path(), std::move(inputs), std::move(attributes)));
  return graph::ValueIds{results[0]};
}

}  // namespace

const ModuleDef kAttentionModule{
    .name = "attention",
    .doc =
        "softmax(scale · q·kᵀ) · v for each query head, of which H/K share a head of keys and values "
        "(Vaswani et al., "
        "arXiv:1706.03762; Ainslie et al., arXiv:2305.13245). Keys and values may be of another sequence, "
        "and values of another "
        "width than keys. With data.documents = \"masked\" a query sees the keys of its own document alone.",
    .reads = "q [B, S, H, E]; k [B, T, K, E]; v [B, T, K, U]",
    .parameters = "NAME.sinks [H], zeros, with `sinks`; role bias",
    .gives = "[B, S, H, U]",
    .least_inputs = 3,
    .most_inputs = 3,
    .attributes = {{.name = "mask",
                    .kind = AttributeKind::kWord,
                    .initial = "causal",
                    .doc = "Which keys a query sees: those up to its own position, or all.",
                    .words = {"causal", "none"}},
                   {.name = "window",
                    .kind = AttributeKind::kInteger,
                    .initial = "0",
                    .doc = "So many keys up to its own, under a causal mask; 0: no bound.",
                    .min = 0,
                    .max = 1 << 30},
                   {.name = "scale",
                    .kind = AttributeKind::kNumber,
                    .doc = "Factor of the scores; left out: 1/√E.",
                    .min = 0,
                    .max = 1e6,
                    .open = true},
                   {.name = "dropout",
                    .kind = AttributeKind::kNumber,
                    .initial = "0",
                    .doc = "Probability with which a probability is zeroed in training.",
                    .min = 0,
                    .max = 1,
                    .open_end = true},
                   {.name = "softcap",
                    .kind = AttributeKind::kNumber,
                    .initial = "0",
                    .doc = "Keeps scores between −c and c by c·tanh(score/c) (Gemma 2); 0: it does not.",
                    .min = 0,
                    .max = 1e6},
                   {.name = "alibi",
                    .kind = AttributeKind::kFlag,
                    .initial = "false",
                    .doc =
                        "Adds −slope · distance to scores, a slope a head (Press et al., arXiv:2108.12409)."},
                   {.name = "sinks",
                    .kind = AttributeKind::kFlag,
                    .initial = "false",
                    .doc = "One more score a head, which is trained and whose value is zero (gpt-oss)."},
                   {
                       .name = "bias",
                       .kind = AttributeKind::kValue,
                       .doc = "The result of a relative_bias step or a pair_bias step, added to the scores "
                              "behind the soft cap; "
                              "left out: none.",
                   },
                   {.name = "positions",
                    .kind = AttributeKind::kValue,
                    .initial = "positions",
                    .doc =
                        "Positions of the queries, i32 [B, S]. A causal mask, dropout and a bias need them.",
                    .may_lack = true}},
    .emit = EmitAttention};

}  // namespace engine::model
