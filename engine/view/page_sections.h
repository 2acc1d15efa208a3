// The sections of the report, each with its headline; empty where there is nothing to say.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/view/document.h"
#include "engine/view/page.h"

namespace engine::view {

using Runs = std::vector<ReportedRun>;

inline constexpr std::size_t kMostRows = 20;  // of a table of events: the newest

// A table of a row a property and a column a run; `number` names the cells' data-number.
struct PropertyRow {
  std::string label;
  const char* number;
  std::function<std::string(const ReportedRun&)> text;  // empty: not known
  bool is_code = false;
};
// Rows that no run has a value in are left out; no row where all are.
Table PropertyTable(const std::string& label, const Runs& runs, const std::vector<PropertyRow>& rows);

Document OverviewSection(const Runs& runs, double now_unix_s);
Document CurvesSection(const Runs& runs);
Document RanksSection(const Runs& runs);
Document GpusSection(const Runs& runs);
Document EventsSection(const Runs& runs);
Document TimeSection(const Runs& runs);
Document PredictionSection(const Runs& runs);
Document MemorySection(const Runs& runs);
Document CheckpointsSection(const Runs& runs);
Document EvaluationsSection(const Runs& runs);
Document TasksSection(const Runs& runs);
Document SettingsSection(const Runs& runs);
Document RecipesSection(const Runs& runs);

}  // namespace engine::view
