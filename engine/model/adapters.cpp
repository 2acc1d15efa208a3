#include "engine/model/adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "engine/model/attributes.h"
#include "engine/model/groups.h"
#include "engine/model/step_context.h"

namespace engine::model {
namespace {

constexpr const char* kTargetsKey = "lora.targets";

void ReportAtTargets(const recipe::Recipe& recipe, std::string message, std::string hint,
                     std::vector<Diagnostic>* diagnostics) {
  Diagnostic diagnostic{.span = {recipe.path, 0, 0, 1},
                        .message = std::move(message),
                        .hint = std::move(hint),
                        .source_line = ""};
  if (const auto found = recipe.provenance.find(kTargetsKey); found != recipe.provenance.end()) {
    diagnostic.span = found->second.span;
    diagnostic.source_line = found->second.source_line;
  }
  ReportText(std::move(diagnostic), diagnostics);
}

}  // namespace

bool HasAdapter(const recipe::Lora& lora, std::string_view step) {
  return lora.rank > 0 && std::any_of(lora.targets.begin(), lora.targets.end(),
                                      [&](const std::string& pattern) { return Matches(pattern, step); });
}

std::string_view StepOfAdapter(std::string_view parameter) {
  for (const std::string_view suffix : {".lora_a", ".lora_b"}) {
    if (parameter.ends_with(suffix)) return parameter.substr(0, parameter.size() - suffix.size());
  }
  return {};
}

void ApplyLora(const recipe::Recipe& recipe, graph::Graph* graph, std::vector<Diagnostic>* diagnostics) {
  if (recipe.lora.rank == 0) return;
  std::vector<std::string> with, without;  // names of steps
  for (const graph::Parameter& parameter : graph->parameters()) {
    const std::string& name = graph->value(parameter.value).name;
    if (parameter.role == graph::Role::kAdapter) {
      with.emplace_back(StepOfAdapter(name));
      continue;
    }
    graph::TrainingSettings settings = parameter.training;
    settings.frozen = true;
    graph->SetTraining(parameter.value, settings);
    constexpr std::string_view kWeight = ".weight";
    if (parameter.role == graph::Role::kMatrix && name.ends_with(kWeight))
      without.push_back(name.substr(0, name.size() - kWeight.size()));
  }
  for (const std::string& pattern : recipe.lora.targets) {
    const bool used = std::any_of(with.begin(), with.end(),
                                  [&](const std::string& step) { return Matches(pattern, step); });
    if (used) continue;
    ReportAtTargets(recipe, fmt::format("no linear step of a stack is called '{}'", pattern),
                    NearestHint(pattern, without), diagnostics);
  }
  if (recipe.lora.targets.empty())
    ReportAtTargets(recipe, "lora.targets is empty, so that nothing would be trained",
                    "targets = [\"*\"] is all linear steps of stacks", diagnostics);
}

}  // namespace engine::model
