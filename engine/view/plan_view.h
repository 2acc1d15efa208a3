// plan.json of a run (driver/plan_document.h), and the recipe in it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/base/status.h"
#include "engine/study/comparison.h"

namespace engine::view {

struct PlanView {
  study::Side side;    // hash, facts, and the recipe where this program understands it
  std::string layout;  // "4 ranks: dp 2 · tp 2"; "1 rank"
  std::string compute;
  std::string recipe_text;  // TOML; empty: the plan has none
  std::string recipe_note;  // why the recipe is not understood

  // A number of the whole plan; nullopt where it has none of that name.
  std::optional<double> Fact(predict::Section section, const std::string& name) const;
};

// Of the text of a plan.json, which is called `name`. Error: it is no plan of this version's form.
absl::StatusOr<PlanView> PlanViewOf(const std::string& name, const std::string& text);

}  // namespace engine::view
