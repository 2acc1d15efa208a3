#include "engine/model/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "engine/graph/op.h"
#include "engine/model/build.h"
#include "engine/model/step_context.h"
#include "engine/ops/ops.h"

namespace engine::model {
namespace {

using graph::Graph;
using graph::ValueKind;

constexpr std::array<std::string_view, 3> kFed = {kTokens, kLabels, kPositions};

void CheckInputs(const recipe::Node& text, const Graph& graph, std::vector<Diagnostic>* diagnostics) {
  const recipe::Node* inputs = text.Find("model.inputs");
  for (const graph::Value& value : graph.values()) {
    if (value.kind != ValueKind::kInput) continue;
    if (std::find(kFed.begin(), kFed.end(), value.name) == kFed.end()) {
      ReportText(ErrorAt(*inputs->Find(value.name), fmt::format("no data gives the input '{}'", value.name),
                         fmt::format("[data] gives {}", fmt::join(kFed, ", "))),
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
    if (!counts[static_cast<std::size_t>(parameter.value)])
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

}  // namespace engine::model
