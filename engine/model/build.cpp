#include "engine/model/build.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "engine/base/status.h"
#include "engine/model/dim_table.h"
#include "engine/model/groups.h"
#include "engine/model/inputs.h"
#include "engine/model/lora.h"
#include "engine/model/scope.h"
#include "engine/model/step_context.h"
#include "engine/model/walk.h"
#include "engine/ops/expert_passes.h"
#include "engine/ops/ops.h"
#include "engine/recipe/expand.h"

namespace engine::model {
namespace {

using graph::Graph;
using recipe::Node;

bool HasStack(const Node& steps) {
  return std::any_of(steps.items.begin(), steps.items.end(), [](const Node& step) {
    const Node* module = step.Find("do");
    return (module != nullptr && module->is_string()) && module->string == "stack";
  });
}

// Blocks are walked once a layer: of the mistakes of one place the first is kept.
void KeepOneAPlace(std::size_t from, std::vector<Diagnostic>* diagnostics) {
  const auto same = [](const Diagnostic& a, const Diagnostic& b) {
    return a.span.file == b.span.file && a.span.line == b.span.line && a.span.column == b.span.column;
  };
  const auto first = diagnostics->begin() + static_cast<std::ptrdiff_t>(from);
  auto end = first;
  for (auto it = first; it != diagnostics->end(); ++it) {
    const bool known = std::any_of(first, end, [&](const Diagnostic& other) { return same(other, *it); });
    if (known) continue;
    if (end != it) *end = std::move(*it);
    ++end;
  }
  diagnostics->erase(end, diagnostics->end());
}

// Whether all attention that the text speaks of sees earlier tokens alone.
bool IsCausal(const Node& node) {
  for (const recipe::Entry& entry : node.entries) {
    if (entry.key == "mask" && entry.value.is_string() && entry.value.string != "causal" &&
        !entry.value.string.starts_with('$'))
      return false;
    if (!IsCausal(entry.value)) return false;
  }
  return std::all_of(node.items.begin(), node.items.end(), IsCausal);
}

void AddNote(Diagnostic diagnostic, std::vector<Diagnostic>* notes) {
  diagnostic.severity = Severity::kNote;
  notes->push_back(std::move(diagnostic));
}

// Blocks and dims of a text without mistakes that none of its steps has needed. A dim is shown at its value: that is of the file
// that said it last.
void NoteUnused(const Blocks& blocks, const Node* named_dims, const DimTable& dims,
                std::vector<Diagnostic>* notes) {
  for (const recipe::Entry* entry : blocks.Unused()) {
    AddNote(
        ErrorAt(*entry,
                fmt::format("block.{} is not used: no stack or call runs it, and no other block is like it",
                            recipe::Shown(entry->key))),
        notes);
  }
  if (named_dims == nullptr) return;
  for (const recipe::Entry& entry : named_dims->entries) {
    if (dims.IsRead(entry.key)) continue;
    AddNote(ErrorAt(entry.value, fmt::format("dims.{} is not used: no step, input or other dim names it",
                                             recipe::Shown(entry.key))),
            notes);
  }
}

}  // namespace

Graph BuildText(const Node& text, const BuildOptions& options, std::vector<Diagnostic>* diagnostics,
                Origins* origins, std::vector<Diagnostic>* notes) {
  const auto table_of = [&](std::string_view key) -> const Node* {
    const Node* node = text.Find(key);
    if (node == nullptr || node->kind == Node::Kind::kTable) return node;
    ReportText(ErrorAt(*node, fmt::format("{} is a table, not {}", key, Describe(*node))), diagnostics);
    return nullptr;
  };
  Graph graph;
  const std::size_t known = diagnostics->size();
  const Node& main = *text.Find("model.main");
  if (main.kind != Node::Kind::kArray) {
    ReportText(ErrorAt(main, fmt::format("model.main is a list of steps, not {}", Describe(main)),
                       "main = [ { do = … }, … ]"),
               diagnostics);
    return graph;
  }
  DimTable dims(options, IsCausal(text));
  const Node* named_dims = table_of("model.dims");
  dims.Read(named_dims, table_of("model.means"), diagnostics);
  if (diagnostics->size() > known) return graph;
  Scope scope{.dims = &dims};
  AddInputs(table_of("model.inputs"), dims, &graph, &scope, diagnostics);
  if (options.documents) AddDocumentInputs(table_of("model.inputs"), dims, &graph, diagnostics);
  Walk walk(text.Find("block"), table_of("model.rotary"), HasStack(main), options, &graph, origins,
            diagnostics);
  walk.Main(main, &scope);
  KeepOneAPlace(known, diagnostics);
  if (notes != nullptr && diagnostics->size() == known) NoteUnused(walk.blocks(), named_dims, dims, notes);
  return graph;
}

namespace {

// Products and attention are asked for the order of sums that does not depend on how many tokens there are (ops/linear.cpp,
// ops/grouped_linear.cpp, ops/attention.cpp). Other steps compute each token by itself, or the recipe is refused (check.h).
void AskForOneOrder(Graph* graph) {
  for (graph::Node& node : graph->nodes()) {
    if (node.op == &ops::kLinear || node.op == &ops::kGroupedLinear || node.op == &ops::kAttention)
      node.attributes.Set("invariant", std::int64_t{1});
  }
}

}  // namespace

absl::StatusOr<Graph> TryBuildModel(const recipe::Recipe& recipe, const BuildOptions& options,
                                    Origins* origins) {
  std::vector<Diagnostic> mistakes;
  Graph graph;
  BuildOptions of_recipe = options;
  of_recipe.lora = recipe.lora;
  of_recipe.documents = recipe.data.documents == "masked";
  if (recipe.is_text()) {
    graph = BuildText(*recipe.text, of_recipe, &mistakes, origins);
  } else {
    graph = BuildText(ExpandedText(recipe), of_recipe, &mistakes, origins);
  }
  if (mistakes.empty()) FreezeForLora(recipe, &graph, &mistakes);
  ApplyGroups(recipe, &graph, &mistakes);
  if (recipe.generate.invariant) AskForOneOrder(&graph);
  if (mistakes.empty()) return graph;
  return Unimplemented("{} samples of {} tokens: {}", options.batch, options.sequence, mistakes[0].message);
}

Graph BuildModel(const recipe::Recipe& recipe, const BuildOptions& options, Origins* origins) {
  absl::StatusOr<Graph> graph = TryBuildModel(recipe, options, origins);
  ENGINE_CHECK(graph.ok(), "a model that was found to be right: {}", Message(graph.status()));
  return *std::move(graph);
}

std::optional<int> TokenOffset(std::string_view input) {
  if (input == kTokens) return 0;
  if (input == kLabels) return 1;
  for (const auto& [prefix, least] : {std::pair(kLabelsOf, '2'), std::pair(kTokensOf, '1')}) {
    const bool is_later = input.size() == prefix.size() + 1 && input.starts_with(prefix);
    if (is_later && input.back() >= least && input.back() <= '9') return input.back() - '0';
  }
  return std::nullopt;
}

bool IsLabels(std::string_view input) { return TokenOffset(input).has_value() && input.starts_with(kLabels); }

std::int64_t CountParameters(const Graph& graph) {
  std::int64_t count = 0;
  for (const graph::Parameter& parameter : graph.parameters()) count += parameter.logical_shape.elements();
  return count;
}

std::int64_t CountActiveParameters(const Graph& graph) {
  std::int64_t count = CountParameters(graph);
  for (const graph::Node& node : graph.nodes()) {
    graph::ValueIds matrices;
    if (node.op == &ops::kGroupedLinear) matrices = {node.inputs[1]};
    if (node.op == &ops::kExpertPasses) matrices = {node.inputs[ops::kPassW1], node.inputs[ops::kPassW2]};
    for (const graph::ValueId matrix : matrices) {
      const std::int64_t experts = node.attributes.Int("experts");
      const std::int64_t of_expert = graph.FindParameter(matrix)->logical_shape.elements() / experts;
      count -= of_expert * (experts - node.attributes.Int("k"));
    }
  }
  return count;
}

}  // namespace engine::model
