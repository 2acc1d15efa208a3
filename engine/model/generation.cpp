#include "engine/model/generation.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/graph/attention_inputs.h"
#include "engine/graph/mask.h"
#include "engine/graph/op.h"
#include "engine/model/build.h"
#include "engine/model/latent_attention.h"
#include "engine/ops/ops.h"

namespace engine::model {
namespace {

using graph::Graph;
using graph::kNoValue;
using graph::NodeId;
using graph::ValueId;
using graph::ValueIds;
using graph::ValueKind;

// Rows of caches of windows are whole multiples of it, so that kernels may read them in blocks.
constexpr std::int64_t kRowMultiple = 64;

// What a node reads. Attention over caches of latents reads those and the weights by which keys and values would be made of them.
ValueIds ReadsOf(const Graph& graph, const graph::Node& node, bool over_caches) {
  if (!over_caches) return node.inputs;
  const std::optional<LatentAttention> of = FindLatentAttention(graph, node);
  return of ? ValueIds{node.inputs[0], of->latent, of->shared, of->key_weight, of->value_weight}
            : node.inputs;
}

// By node: whether the logits depend on it.
std::vector<bool> NodesOfLogits(const Graph& graph, bool over_caches) {
  std::vector<bool> needed(graph.nodes().size(), false);
  std::vector<ValueId> open = {graph.logits()};
  while (!open.empty()) {
    const NodeId producer = graph.value(open.back()).producer;
    open.pop_back();
    if (producer < 0 || needed[static_cast<std::size_t>(producer)]) continue;
    needed[static_cast<std::size_t>(producer)] = true;
    const ValueIds inputs = ReadsOf(graph, graph.nodes()[static_cast<std::size_t>(producer)], over_caches);
    open.insert(open.end(), inputs.begin(), inputs.end());
  }
  return needed;
}

// The product that the logits are made of, value by value; −1: it is not found.
NodeId HeadOf(const Graph& graph) {
  ValueId value = graph.logits();
  while (true) {
    const NodeId producer = graph.value(value).producer;
    if (producer < 0) return -1;
    const graph::Node& node = graph.nodes()[static_cast<std::size_t>(producer)];
    if (node.op == &ops::kLinear) return producer;
    if (node.op != &ops::kSoftcap && node.op != &ops::kScale && node.op != &ops::kBiasAdd) return -1;
    value = node.inputs[0];
  }
}

ValueId FindInput(const Graph& graph, std::string_view name) {
  for (std::size_t v = 0; v < graph.values().size(); ++v) {
    if (graph.values()[v].kind == ValueKind::kInput && graph.values()[v].name == name)
      return static_cast<ValueId>(v);
  }
  return kNoValue;
}

// Copies what the logits are made of into another graph, with the steps that generation has instead of others.
class Rewriter {
 public:
  Rewriter(const Graph& from, const Graph& whole, const GenerationStep& step)
      : from_(from),
        whole_(whole),
        step_(step),
        needed_(NodesOfLogits(from, /*over_caches=*/!step.begins)),
        head_(HeadOf(from)),
        copies_(from.values().size(), kNoValue) {}

  absl::StatusOr<Graph> Run() {
    RETURN_IF_ERROR(Check());
    CopyFrame();
    AddInputs();
    for (std::size_t n = 0; n < from_.nodes().size(); ++n) {
      if (!needed_[n]) continue;
      const graph::Node& node = from_.nodes()[n];
      to_.SetPosition(node.phase, node.unit, node.component);
      if (node.op == &ops::kAttention) {
        Attention(node);
      } else {
        Copy(node, static_cast<NodeId>(n) == head_ && step_.begins);
      }
    }
    to_.set_logits(CopyOf(from_.logits()));
    AddTopLogits();
    return std::move(to_);
  }

 private:
  absl::Status Check() {
    if (from_.logits() == kNoValue) return Unimplemented("the model has no logits to generate from");
    const ValueId tokens = FindInput(from_, kTokens);
    positions_ = FindInput(from_, kPositions);
    if (tokens == kNoValue || positions_ == kNoValue)
      return Unimplemented("generation feeds the inputs tokens and positions, and the model has not both");
    samples_ = from_.value(tokens).type.shape[0];
    tokens_ = from_.value(tokens).type.shape[1];
    if (head_ < 0) return Unimplemented("the logits come of no linear step");
    if (from_.value(from_.logits()).type.dtype == DType::kF64)
      return Unimplemented("generation computes in fp32 at most");
    const Shape& logits = from_.value(from_.logits()).type.shape;
    if (logits.rank() != 3)
      return Unimplemented("generation takes logits of one vocabulary, [B, S, V], and they are {}",
                           logits.ToString());
    if (whole_.nodes().size() != from_.nodes().size())
      return Unimplemented("the model has other steps for {} tokens than for {}", tokens_, step_.context);
    for (std::size_t n = 0; n < from_.nodes().size(); ++n) {
      if (!needed_[n]) continue;
      RETURN_IF_ERROR(Check(from_.nodes()[n]));
      RETURN_IF_ERROR(CheckLength(from_.nodes()[n], whole_.nodes()[n]));
    }
    for (const char* name : {kCacheSlots, kWantedTokens, kTemperatures}) {
      if (FindInput(from_, name) != kNoValue)
        return Unimplemented("generation adds an input '{}', and the model has one of this name", name);
    }
    return absl::OkStatus();
  }

  absl::Status Check(const graph::Node& node) const {
    if (ops::MixesTokens(*node.op)) {
      return Unimplemented("{} ({}) mixes the tokens of a sequence, as generation, token by token, cannot",
                           node.name, node.op->name);
    }
    for (const ValueId input : node.inputs) {
      const graph::Value& value = from_.value(input);
      const bool fed = value.name == kTokens || value.name == kPositions || value.name == kSequencePositions;
      if (value.kind != ValueKind::kInput || fed) continue;
      return Unimplemented("{} ({}) reads the input {}, and generation feeds tokens and positions alone",
                           node.name, node.op->name, value.name);
    }
    if (node.op == &ops::kEmbedding) return CheckRows(node);
    if (node.op != &ops::kAttention) return absl::OkStatus();
    if (!graph::IsCausal(node.attributes))
      return InvalidArgument(
          "{} sees later tokens too, and generation makes one after the other: what it gives would depend on "
          "what stands "
          "in the place of those that are not made yet",
          node.name);
    const auto tokens_of = [&](std::size_t input) { return from_.value(node.inputs[input]).type.shape[1]; };
    if (tokens_of(0) == tokens_ && tokens_of(1) == tokens_) return absl::OkStatus();
    return Unimplemented("{} is of {} queries and {} keys, where a sequence has {} tokens", node.name,
                         tokens_of(0), tokens_of(1), tokens_);
  }

  // What a step computes must not depend on how many tokens it is given: attributes and parameters may be made of S.
  absl::Status CheckLength(const graph::Node& node, const graph::Node& of_whole) const {
    bool same = node.op == of_whole.op && node.attributes.items() == of_whole.attributes.items();
    for (std::size_t i = 0; same && i < node.inputs.size(); ++i) {
      const graph::Value& value = from_.value(node.inputs[i]);
      if (value.kind == ValueKind::kParameter) same = value.type == whole_.value(of_whole.inputs[i]).type;
    }
    if (same) return absl::OkStatus();
    return Unimplemented("{} ({}) is another one for {} tokens than for {}", node.name, node.op->name,
                         tokens_, step_.context);
  }

  // A table of positions has a row for each.
  absl::Status CheckRows(const graph::Node& node) const {
    if (node.inputs[0] != positions_) return absl::OkStatus();
    const std::int64_t rows = from_.value(node.inputs[1]).type.shape[0] - node.attributes.Int("offset", 0);
    if (rows >= step_.context) return absl::OkStatus();
    return InvalidArgument("{} has {} positions, fewer than the {} of a sequence", node.name, rows,
                           step_.context);
  }

  void CopyFrame() {
    for (const graph::Unit& unit : from_.units()) to_.BeginUnit(unit.name, unit.kind);
    for (const graph::Component& component : from_.components()) {
      to_.SetPosition(graph::Phase::kForward, 0, component.within);
      to_.OpenComponent(component);
    }
  }

  void AddInputs() {
    // Parameters in their order, which is the same in all forms.
    std::vector<bool> read(from_.values().size(), false);
    for (std::size_t n = 0; n < from_.nodes().size(); ++n) {
      if (!needed_[n]) continue;
      for (const ValueId input : ReadsOf(from_, from_.nodes()[n], !step_.begins))
        read[static_cast<std::size_t>(input)] = true;
    }
    read[static_cast<std::size_t>(positions_)] = true;
    for (std::size_t v = 0; v < from_.values().size(); ++v) {
      if (read[v]) CopyLeaf(static_cast<ValueId>(v));
    }
    const graph::TensorType& positions = from_.value(positions_).type;
    slots_ =
        to_.AddInput(kCacheSlots, {.shape = {samples_}, .dtype = DType::kI32, .dims = {positions.dims[0]}});
    if (step_.begins) {
      wanted_ = to_.AddInput(
          kWantedTokens,
          {.shape = {samples_, step_.wanted}, .dtype = DType::kI32, .dims = {positions.dims[0]}});
    }
    temperatures_ =
        to_.AddInput(kTemperatures, {.shape = {samples_}, .dtype = DType::kF32, .dims = {positions.dims[0]}});
  }

  void AddTopLogits() {
    const graph::TensorType& logits = to_.value(to_.logits()).type;
    std::int64_t classes = logits.shape[logits.shape.rank() - 1];
    const graph::Node& head = from_.nodes()[static_cast<std::size_t>(head_)];
    if (const graph::Parameter* weight = from_.FindParameter(head.inputs[1]))
      classes = std::min(classes, weight->logical_shape[0]);  // the rest pads it
    const graph::ValueIds top = to_.Emit(ops::kTopLogits, "top_logits", {to_.logits(), temperatures_},
                                         {{"classes", classes}, {"count", std::min(kTopLogits, classes)}});
    to_.value(top[2]).pin = graph::Pin::kReplicated;
    graph::TopLogits told = {.tokens = top[0], .values = top[1], .log_sums = top[2]};
    if (head.attributes.Int("invariant", 0) != 0) {
      // By the op that evaluation has. The sums do not depend on labels: any tokens will do.
      const ValueId labels = step_.begins ? wanted_ : CopyOf(positions_);
      const ValueIds of_rows =
          to_.Emit(ops::kCrossEntropy, "row_log_sums", {to_.logits(), labels}, {{"classes", classes}});
      to_.value(of_rows[0]).pin = graph::Pin::kReplicated;
      told.row_log_sums = of_rows[0];
    }
    to_.set_top_logits(told);
  }

  void CopyLeaf(ValueId id) {
    const graph::Value& value = from_.value(id);
    ValueId& copy = copies_[static_cast<std::size_t>(id)];
    if (value.kind == ValueKind::kInput) {
      graph::TensorType type = value.type;
      if (!step_.begins && type.shape.rank() > 1)
        type.dims.Set(1, graph::Dim::kOther);  // one token is not split
      copy = to_.AddInput(value.name, type);
    } else if (value.kind == ValueKind::kParameter) {
      const graph::Parameter& parameter = *from_.FindParameter(id);
      copy = to_.AddParameter(value.name, value.type, parameter.logical_shape, parameter.initializer,
                              parameter.role);
      to_.SetTraining(copy, parameter.training);
    } else if (value.kind == ValueKind::kState) {
      const auto state = std::find_if(from_.states().begin(), from_.states().end(),
                                      [&](const graph::State& of) { return of.value == id; });
      copy = to_.AddState(value.name, value.type, state->spec);
    }
    if (copy != kNoValue) to_.value(copy).pin = value.pin;
  }

  ValueId CopyOf(ValueId id) const { return copies_[static_cast<std::size_t>(id)]; }

  ValueIds CopiesOf(const ValueIds& ids) const {
    ValueIds copies;
    for (const ValueId id : ids) copies.push_back(CopyOf(id));
    return copies;
  }

  // The copies of a node's outputs are these.
  void Made(const graph::Node& node, const ValueIds& outputs) {
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      copies_[static_cast<std::size_t>(node.outputs[i])] = outputs[i];
      const graph::Value& of = from_.value(node.outputs[i]);
      to_.value(outputs[i]).name = of.name;
      to_.value(outputs[i]).pin = of.pin;
    }
  }

  void Copy(const graph::Node& node, bool of_wanted_tokens) {
    ValueIds inputs = CopiesOf(node.inputs);
    if (of_wanted_tokens)
      inputs[0] = to_.Emit1(ops::kTakeTokens, node.name + ".tokens", {inputs[0], wanted_});
    std::vector<ValueId> into;
    for (const ValueId output : node.outputs) {
      const ValueKind kind = from_.value(output).kind;
      into.push_back(kind == ValueKind::kActivation ? kNoValue : CopyOf(output));
    }
    Made(node, to_.Emit(*node.op, node.name, std::move(inputs), node.attributes, into));
  }

  // The cache of what attention reads.
  ValueId CacheOf(const graph::Node& node, ValueId x, std::string_view what) {
    const graph::TensorType& type = to_.value(x).type;
    const std::int64_t window = node.attributes.Int("window", 0);
    // Where rows came in another order than the positions, so would the sums of attention.
    const bool forgets = window > 0 && node.attributes.Int("invariant", 0) == 0;
    const std::int64_t rows =
        forgets ? std::min(step_.context, (window + kRowMultiple - 1) / kRowMultiple * kRowMultiple)
                : step_.context;
    graph::TensorType of_cache{.shape = {step_.slots, rows}, .dtype = type.dtype, .dims = {}};
    if (step_.narrow_cache) of_cache.dtype = DType::kE4M3;
    of_cache.dims = {graph::Dim::kSample, graph::Dim::kOther};  // a slot lies where its sequence's samples do
    for (int dim = 2; dim < type.shape.rank(); ++dim) of_cache.Append(type, dim);
    return to_.AddState(fmt::format("{}.{}", node.name, what), of_cache,
                        {.life = graph::Lifetime::kSession, .folder = "cache", .split = true});
  }

  // Keeps tokens of sequences that begin in a cache.
  void Keep(ValueId x, ValueId cache) {
    const std::vector<ValueId> into = {cache};
    to_.Emit(ops::kCacheUpdate, to_.value(cache).name + ".update", {x, cache, CopyOf(positions_), slots_}, {},
             into);
  }

  void Attention(const graph::Node& node) {
    if (const std::optional<LatentAttention> latent = FindLatentAttention(from_, node)) {
      AttentionOfLatents(node, *latent);
      return;
    }
    const ValueIds inputs = CopiesOf(node.inputs);
    const ValueId positions = CopyOf(positions_);
    const std::vector<ValueId> caches = {CacheOf(node, inputs[1], "keys"),
                                         CacheOf(node, inputs[2], "values")};
    if (step_.begins) {
      for (const std::size_t i : {0, 1}) Keep(inputs[i + 1], caches[i]);
      Copy(node, /*of_wanted_tokens=*/false);
      return;
    }
    std::vector<graph::TensorType> types;
    for (const ValueId input : inputs) types.push_back(to_.value(input).type);
    const graph::AttentionInputs at = graph::InputsOfAttention(types, {});
    ValueIds cached = {inputs[0], inputs[1], inputs[2], caches[0], caches[1], positions, slots_};
    for (const std::size_t input : {at.sinks, at.biases}) {
      if (input != graph::AttentionInputs::kNone) cached.push_back(inputs[input]);
    }
    graph::Attributes attributes;
    for (const auto& [name, value] : node.attributes.items()) {
      if (name != "dropout" && name != "stream" && name != "kernel") attributes.Set(name, value);
    }
    const std::vector<ValueId> into = {kNoValue, caches[0], caches[1]};
    const ValueIds outputs =
        to_.Emit(ops::kCachedAttention, node.name, std::move(cached), std::move(attributes), into);
    Made(node, {outputs[0]});
  }

  // Of each token its latent and the shared part of its key are kept. A prompt's attention is the model's; a step's meets the
  // latents themselves.
  void AttentionOfLatents(const graph::Node& node, const LatentAttention& of) {
    const ValueId latent = CopyOf(of.latent);
    const ValueId shared = CopyOf(of.shared);
    const ValueId latents = CacheOf(node, latent, "latents");
    const ValueId shareds = CacheOf(node, shared, "shared");
    if (step_.begins) {
      Keep(latent, latents);
      Keep(shared, shareds);
      Copy(node, /*of_wanted_tokens=*/false);
      return;
    }
    const ValueId q = CopyOf(node.inputs[0]);
    const ValueId absorbed = to_.Emit1(ops::kHeadLinear, node.name + ".query", {q, CopyOf(of.key_weight)},
                                       {{"transposed", std::int64_t{1}}, {"first", of.first_own}});
    const std::vector<ValueId> into = {kNoValue, latents, shareds};
    const ValueIds outputs =
        to_.Emit(ops::kCachedLatentAttention, node.name,
                 {absorbed, q, latent, shared, latents, shareds, CopyOf(positions_), slots_},
                 {{"scale", node.attributes.Float("scale")},
                  {"first", of.first_shared},
                  {"window", node.attributes.Int("window", 0)}},
                 into);
    Made(node, {to_.Emit1(ops::kHeadLinear, node.name + ".value", {outputs[0], CopyOf(of.value_weight)})});
  }

  const Graph& from_;
  const Graph& whole_;
  const GenerationStep step_;
  const std::vector<bool> needed_;
  const NodeId head_;
  Graph to_;
  std::vector<ValueId> copies_;   // by value of from_
  ValueId positions_ = kNoValue;  // of from_
  ValueId slots_ = kNoValue, wanted_ = kNoValue, temperatures_ = kNoValue;
  std::int64_t samples_ = 0, tokens_ = 0;  // B, S
};

}  // namespace

absl::StatusOr<Graph> ForGeneration(const Graph& evaluate, const Graph& whole, const GenerationStep& step) {
  return Rewriter(evaluate, whole, step).Run();
}

}  // namespace engine::model
