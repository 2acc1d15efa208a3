#include "engine/model/lora.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "engine/model/attributes.h"
#include "engine/model/groups.h"
#include "engine/recipe/text.h"

namespace engine::model {
namespace {

// The linear steps that have adapters.
std::vector<std::string> Adapted(const graph::Graph& graph) {
  const std::string suffix = fmt::format(".{}", kLoraA);
  std::vector<std::string> names;
  for (const graph::Parameter& parameter : graph.parameters()) {
    const std::string& name = graph.value(parameter.value).name;
    if (parameter.role == graph::Role::kAdapter && name.ends_with(suffix))
      names.push_back(name.substr(0, name.size() - suffix.size()));
  }
  return names;
}

// Those that could: steps of layers whose weight is their own, a matrix of one product.
std::vector<std::string> Adaptable(const graph::Graph& graph) {
  const auto in_layer = [&](graph::ComponentId id) {
    for (; id != graph::kNoComponent; id = graph.components()[static_cast<std::size_t>(id)].within)
      if (graph.components()[static_cast<std::size_t>(id)].is_layer) return true;
    return false;
  };
  std::vector<std::string> names;
  for (const graph::Node& node : graph.nodes()) {
    if (node.op->name != "linear" || node.attributes.Int("router", 0) != 0 || !in_layer(node.component))
      continue;
    if (graph.value(node.inputs[1]).name == node.name + ".weight") names.push_back(node.name);
  }
  return names;
}

// Whether the pattern speaks of matrices of experts, or of routers, none of which has an adapter.
bool NamesExperts(const std::string& pattern, const graph::Graph& graph) {
  return std::any_of(
      graph.parameters().begin(), graph.parameters().end(), [&](const graph::Parameter& parameter) {
        const graph::Value& value = graph.value(parameter.value);
        const std::string step = value.name.substr(0, value.name.rfind('.'));
        const bool of_experts = parameter.role == graph::Role::kMatrix && value.type.shape.rank() > 0 &&
                                value.type.meaning(0) == graph::Dim::kExpert;
        return (of_experts || parameter.role == graph::Role::kRouter) &&
               (Matches(pattern, step) || Matches(pattern, value.name));
      });
}

void Report(const recipe::Recipe& recipe, std::string message, std::string hint,
            std::vector<Diagnostic>* diagnostics) {
  const auto found = recipe.provenance.find("lora.targets");
  const recipe::Provenance place = found == recipe.provenance.end() ? recipe::Provenance{} : found->second;
  diagnostics->push_back(
      {Severity::kError, place.span, std::move(message), std::move(hint), place.source_line, "E208"});
}

}  // namespace

bool IsLoraTarget(const recipe::Lora& lora, std::string_view step) {
  return lora.rank > 0 && std::any_of(lora.targets.begin(), lora.targets.end(),
                                      [&](const std::string& pattern) { return Matches(pattern, step); });
}

std::string_view StepOfAdapter(std::string_view parameter) {
  for (const std::string_view name : {kLoraA, kLoraB}) {
    const std::size_t step = parameter.size() - std::min(parameter.size(), name.size() + 1);
    if (step > 0 && parameter.ends_with(name) && parameter[step] == '.') return parameter.substr(0, step);
  }
  return {};
}

void FreezeForLora(const recipe::Recipe& recipe, graph::Graph* graph, std::vector<Diagnostic>* diagnostics) {
  if (recipe.lora.rank == 0) return;
  const std::vector<std::string> adapted = Adapted(*graph);
  const std::size_t known = diagnostics->size();
  for (const std::string& pattern : recipe.lora.targets) {
    const bool used = std::any_of(adapted.begin(), adapted.end(),
                                  [&](const std::string& name) { return Matches(pattern, name); });
    if (used) continue;
    const std::vector<std::string> steps = Adaptable(*graph);
    std::string hint = NearestHint(pattern, steps);
    if (hint.empty() && !steps.empty()) hint = fmt::format("such as \"{}\"", steps.front());
    std::string message = fmt::format("no linear step of a stack is called '{}'", recipe::Shown(pattern));
    if (NamesExperts(pattern, *graph)) message += ": matrices of experts and routers have no adapters";
    Report(recipe, std::move(message), std::move(hint), diagnostics);
  }
  if (adapted.empty() && diagnostics->size() == known)
    Report(recipe, "lora.targets names no step, so there would be no adapters", "targets = [\"*\"]",
           diagnostics);
  if (adapted.empty()) return;
  for (const graph::Parameter& parameter : graph->parameters()) {
    if (parameter.role == graph::Role::kAdapter) continue;
    graph::TrainingSettings settings = parameter.training;
    settings.frozen = true;
    graph->SetTraining(parameter.value, settings);
  }
}

}  // namespace engine::model
