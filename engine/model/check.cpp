#include "engine/model/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "engine/graph/op.h"
#include "engine/model/build.h"
#include "engine/model/step_context.h"
#include "engine/ops/ops.h"
#include "engine/recipe/rules.h"

namespace engine::model {
namespace {

using graph::Graph;
using graph::ValueKind;

void CheckInputs(const recipe::Node& text, const Graph& graph, std::vector<Diagnostic>* diagnostics) {
  const recipe::Node* inputs = text.Find("model.inputs");
  for (const graph::Value& value : graph.values()) {
    if (value.kind != ValueKind::kInput) continue;
    if (inputs == nullptr || inputs->Find(value.name) == nullptr) continue;  // AddDocumentInputs'
    if (!TokenOffset(value.name).has_value() && value.name != kPositions) {
      ReportText(ErrorAt(*inputs->Find(value.name), fmt::format("no data gives the input '{}'", value.name),
                         "[data] gives tokens, labels, positions, and labels_2 to labels_9 and tokens_1 to "
                         "tokens_9, the tokens "
                         "further behind"),
                 diagnostics);
    } else if (value.type.shape.rank() != 2 || value.type.dtype != DType::kI32) {
      ReportText(ErrorAt(*inputs->Find(value.name), fmt::format("{} are i32[B,S]", value.name)), diagnostics);
    }
  }
}

// Parameters that no loss depends on.
void CheckGradients(const recipe::Node& text, const Graph& graph, std::vector<Diagnostic>* diagnostics) {
  std::vector<bool> counts(graph.values().size(), false);
  for (const graph::Metric& metric : graph.metrics())
    counts[static_cast<std::size_t>(metric.sum)] = metric.weight != 0;
  for (std::size_t i = graph.nodes().size(); i-- > 0;) {
    const graph::Node& node = graph.nodes()[i];
    const bool matters = node.op->gradient != nullptr &&
                         std::any_of(node.outputs.begin(), node.outputs.end(),
                                     [&](graph::ValueId v) { return counts[static_cast<std::size_t>(v)]; });
    if (!matters) continue;
    for (const graph::ValueId input : node.inputs) counts[static_cast<std::size_t>(input)] = true;
  }
  std::vector<std::string> names;
  for (const graph::Parameter& parameter : graph.parameters()) {
    if (!counts[static_cast<std::size_t>(parameter.value)] && !parameter.training.frozen)
      names.push_back(graph.value(parameter.value).name);
  }
  if (names.empty()) return;
  ReportText(
      ErrorAt(*text.Find("model.main"),
              fmt::format("no loss depends on {}{}, so {} would not be trained", names[0],
                          names.size() > 1 ? fmt::format(" and {} other parameters", names.size() - 1) : "",
                          names.size() > 1 ? "they" : "it"),
              "remove what makes it, or let a loss read what it gives"),
      diagnostics);
}

struct Unshared {
  std::string node;
  std::string_view what, one;  // of several, and of one
  std::int64_t size = 0;
};

// A size that tp ranks cannot share: heads of attention; of a product, the dim that it would be split along, where there
// is none that they can share.
std::optional<Unshared> NotShared(const Graph& graph, std::int64_t tp) {
  for (const graph::Node& node : graph.nodes()) {
    if (node.op->family == graph::Family::kAttention) {
      const std::int64_t heads = graph.value(node.inputs[1]).type.shape[2];
      if (heads % tp != 0)
        return Unshared{node.name, "heads of keys and values", "head of keys and values", heads};
    }
    if (node.op != &ops::kLinear || node.attributes.Int("adapter", 0) != 0) continue;
    const graph::TensorType& w = graph.value(node.inputs[1]).type;
    const int out = w.shape.rank() - static_cast<int>(node.attributes.Int("in_dims"));
    const int o = static_cast<int>(node.attributes.Int("out_split", 0));
    const int i = out + static_cast<int>(node.attributes.Int("in_split", 0));
    const auto splits = [&](int dim) {
      return graph::RuleOf(graph::Axis::kTp).parameters.Has(w.meaning(dim));
    };
    const bool shared = (splits(o) && w.shape[o] % tp == 0) || (splits(i) && w.shape[i] % tp == 0);
    if (shared || w.meaning(o) == graph::Dim::kVocab || (!splits(o) && !splits(i))) continue;
    return Unshared{node.name, "rows of the weight", "row of the weight", w.shape[splits(o) ? o : i]};
  }
  return std::nullopt;
}

}  // namespace

void CheckTrainable(const recipe::Node& text, const Graph& graph, std::vector<Diagnostic>* diagnostics) {
  CheckInputs(text, graph, diagnostics);
  CheckGradients(text, graph, diagnostics);
  if (VocabularyOf(graph) > 0 || HasErrors(*diagnostics)) return;
  ReportText(
      ErrorAt(
          *text.Find("model.main"), "no step looks up the input 'tokens'",
          "{ do = \"embedding\", as = \"embedding.tokens\", of = \"tokens\", rows = \"V\", width = \"D\" }"),
      diagnostics);
}

bool SplitsOver(const recipe::Recipe& recipe, std::int64_t tp) {
  if (!recipe.is_text()) return recipe.kv_heads() % tp == 0 && recipe.ffn_hidden() % tp == 0;
  std::vector<Diagnostic> mistakes;
  const Graph graph = BuildText(*recipe.text, {}, &mistakes);
  return mistakes.empty() && !NotShared(graph, tp).has_value();
}

void CheckOneOrder(const recipe::Recipe& recipe, const Graph& graph, std::vector<Diagnostic>* diagnostics) {
  if (!recipe.generate.invariant) return;
  const auto mixes = std::find_if(graph.nodes().begin(), graph.nodes().end(),
                                  [](const graph::Node& node) { return ops::MixesTokens(*node.op); });
  if (mixes == graph.nodes().end()) return;
  const recipe::Provenance& place = recipe.provenance.at("generate.invariant");
  diagnostics->push_back(
      {Severity::kError, place.span,
       fmt::format(
           "what {} ({}) gives of a token depends on the other tokens, so that none has bits of its own",
           mixes->name, mixes->op->name),
       "a model without that step; or generate.invariant = false", place.source_line, "E213"});
}

void CheckSplits(const recipe::Recipe& recipe, const Graph& graph, std::vector<Diagnostic>* diagnostics) {
  const std::int64_t tp = recipe.parallelism.tp;
  const std::optional<Unshared> unshared = NotShared(graph, tp);
  if (!unshared.has_value()) return;
  const recipe::Provenance& place = recipe.provenance.at("parallelism.tp");
  const std::string remainder =
      unshared->size > tp ? fmt::format(" (remainder {})", unshared->size % tp) : std::string();
  diagnostics->push_back(
      {Severity::kError, place.span,
       fmt::format("{} of {} cannot be shared by tp {}{}",
                   unshared->size == 1 ? "1 " + std::string(unshared->one)
                                       : fmt::format("{} {}", unshared->size, unshared->what),
                   unshared->node, tp, remainder),
       fmt::format("tp {}; or dims that are multiples of {}", recipe::NearestDivisors(tp, unshared->size),
                   tp),
       place.source_line, "E202"});
}

std::int64_t StreamWidth(const Graph& graph) {
  for (std::size_t i = graph.nodes().size(); i-- > 0;) {
    const graph::Node& node = graph.nodes()[i];
    if (graph.units()[static_cast<std::size_t>(node.unit)].kind != graph::Unit::Kind::kBlock) continue;
    const graph::Value& value = graph.value(node.outputs[0]);
    if (value.pin != graph::Pin::kResidual) continue;
    return value.type.shape.elements() / value.type.shape.elements(0, std::min(2, value.type.shape.rank()));
  }
  return 0;
}

std::int64_t CountBlocks(const Graph& graph) {
  return std::count_if(graph.units().begin(), graph.units().end(),
                       [](const graph::Unit& unit) { return unit.kind == graph::Unit::Kind::kBlock; });
}

std::int64_t VocabularyOf(const Graph& graph) {
  for (const graph::Node& node : graph.nodes()) {
    if (node.op == &ops::kEmbedding && graph.value(node.inputs[0]).name == kTokens)
      return graph.FindParameter(node.inputs[1])->logical_shape[0];
  }
  return 0;
}

std::int64_t ExpertsOf(const Graph& graph) {
  std::int64_t experts = 0;
  for (const graph::Parameter& parameter : graph.parameters()) {
    const graph::TensorType& type = graph.value(parameter.value).type;
    if (type.meaning(0) == graph::Dim::kExpert) experts = std::gcd(experts, type.shape[0]);
  }
  return experts;
}

std::int64_t SampleGroupOf(const Graph& graph) {
  std::int64_t group = 1;
  for (const graph::Node& node : graph.nodes()) {
    if (node.op != &ops::kTally && node.op != &ops::kDrop) continue;
    const bool any = node.attributes.Int("of_rank", 0) != 0 || node.attributes.Int("of_all", 0) != 0;
    if (!any) group = std::lcm(group, node.attributes.Int("samples", 1));
  }
  return group;
}

}  // namespace engine::model
