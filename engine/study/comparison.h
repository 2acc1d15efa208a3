// Two recipes or plans side by side: what was written differently, and what that does.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/plan/plan.h"
#include "engine/predict/compare.h"
#include "engine/recipe/recipe.h"
#include "engine/study/tasks.h"

namespace engine::study {

struct Side {
  std::string name;                      // as the user calls it
  std::string hash;                      // of the plan
  std::optional<recipe::Recipe> recipe;  // none: a plan without its recipe
  // The recipe's text was kept in a plan or checkpoint, where comments tell where its values come from.
  bool kept = false;
  std::vector<predict::Fact> facts;
  std::vector<TaskMeasure> tasks = {};  // of a run: what its last evaluation came to
};

// Compiles the recipe, which must have passed validation. A plan that does not fit its device is compared
// all the same.
absl::StatusOr<Side> SideOf(std::string name, recipe::Recipe recipe, const plan::DeviceProfile& profile);
// Of the text of a plan.json.
absl::StatusOr<Side> SideOfPlan(std::string name, const std::string& text);

struct SettingChange {
  std::string key;
  std::string a, b;                // as TOML
  std::string a_origin, b_origin;  // "file:line:column", "default"
};

struct Comparison {
  std::string a, b;            // names
  std::string a_hash, b_hash;  // of the plans
  bool settings_known = true;  // both sides have their recipe
  std::vector<SettingChange> settings;
  std::vector<predict::Effect> effects;
  std::vector<TaskDifference> tasks = {};  // of runs; equal ones too
  // Something else differs that the caller tells: what two checkpoints hold. Then no text says that there is no difference.
  bool more_differs = false;

  bool empty() const { return settings.empty() && effects.empty() && a_hash == b_hash; }
};

Comparison Compare(const Side& a, const Side& b);

std::string ToText(const Comparison& comparison);
std::string ToMarkdown(const Comparison& comparison);
// Stages by number, numbers unrounded; empty lists where nothing differs.
nlohmann::ordered_json ToJson(const Comparison& comparison);

// A number of an effect as people read it: "1.50 GiB", "12.4 %"; "–" for null.
std::string FactText(predict::Unit unit, const nlohmann::json& value);

}  // namespace engine::study
