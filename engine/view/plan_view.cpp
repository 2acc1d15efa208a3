#include "engine/view/plan_view.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/diagnostic.h"
#include "engine/base/json.h"
#include "engine/base/units.h"
#include "engine/model/load.h"

namespace engine::view {
namespace {

using Json = nlohmann::json;

std::string PlanWord(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::int64_t AxisSize(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
}

std::string LayoutOf(const Json& plan) {
  const Json& mesh = plan.at("mesh");  // FactsOf has looked at it
  const std::int64_t ranks = AxisSize(mesh, "world");
  std::string axes;
  for (const char* axis : {"dp", "tp", "pp", "cp", "ep"}) {
    if (AxisSize(mesh, axis) > 1)
      axes += fmt::format("{}{} {}", axes.empty() ? ": " : " · ", axis, AxisSize(mesh, axis));
  }
  return fmt::format("{} rank{}{}", WithThousands(ranks), ranks == 1 ? "" : "s", axes);
}

std::string FirstError(const recipe::LoadResult& loaded) {
  const auto is_error = [](const Diagnostic& d) { return d.severity == Severity::kError; };
  const auto found = std::find_if(loaded.diagnostics.begin(), loaded.diagnostics.end(), is_error);
  return found == loaded.diagnostics.end() ? "" : found->message;
}

}  // namespace

std::optional<double> PlanView::Fact(predict::Section section, const std::string& name) const {
  for (const predict::Fact& fact : side.facts) {
    const bool is_it = fact.key.section == section && fact.key.stage < 0 && fact.key.name == name;
    if (is_it && fact.value.is_number()) return fact.value.get<double>();
  }
  return std::nullopt;
}

absl::StatusOr<PlanView> PlanViewOf(const std::string& name, const std::string& text) {
  ASSIGN_OR_RETURN(const Json json, ParseJson(text, name));
  absl::StatusOr<std::vector<predict::Fact>> facts = predict::FactsOf(json);
  if (!facts.ok()) return WithContext(facts.status(), name);
  PlanView plan{
      .side = {.name = name, .hash = PlanWord(json, "hash"), .recipe = {}, .facts = *std::move(facts)},
      .layout = LayoutOf(json),
      .compute = PlanWord(json, "compute"),
      .recipe_text = PlanWord(json, "recipe"),
      .recipe_note = {}};
  if (plan.recipe_text.empty()) return plan;
  recipe::LoadResult loaded = model::LoadText(plan.recipe_text, name + " (recipe)");
  if (!loaded.ok()) {
    plan.recipe_note = fmt::format("{}: its recipe is of another version: {}", name, FirstError(loaded));
    return plan;
  }
  plan.side.recipe = std::move(loaded.recipe);
  plan.side.kept = true;
  return plan;
}

}  // namespace engine::view
