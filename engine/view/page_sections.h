// The sections of the page, each with its headline; empty where there is nothing to say.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/view/page.h"

namespace engine::view {

using Runs = std::vector<ReportedRun>;

// A table of a row a property and a column a run; `number` names the cells' data-number.
struct PropertyRow {
  std::string label;  // plain text, as are the values
  const char* number;
  std::function<std::string(const ReportedRun&)> text;  // empty: not known
};
// Rows that no run has a value in are left out; empty where all are.
std::string PropertyTable(const std::string& label, const Runs& runs, const std::vector<PropertyRow>& rows);

std::string OverviewSection(const Runs& runs, double now_unix_s);
std::string CurvesSection(const Runs& runs);
std::string TimeSection(const Runs& runs);
std::string PredictionSection(const Runs& runs);
std::string MemorySection(const Runs& runs);
std::string CheckpointsSection(const Runs& runs);
std::string EvaluationsSection(const Runs& runs);
std::string SettingsSection(const Runs& runs);
std::string RecipesSection(const Runs& runs);
std::string NotesSection(const Runs& runs);

}  // namespace engine::view
