#include "engine/view/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <utility>

#include "engine/base/file.h"
#include "engine/base/units.h"
#include "engine/base/version.h"
#include "engine/checkpoint/layout.h"
#include "engine/driver/run_folder.h"
#include "engine/recipe/print.h"
#include "engine/view/page_sections.h"
#include "engine/view/status_text.h"
#include "engine/view/words.h"

namespace engine::view {

namespace fs = std::filesystem;
using predict::Section;

namespace {

std::string PathIn(const RunView& view, const char* name) { return (fs::path(view.folder) / name).string(); }

std::string RecipeTextOf(const RunView& view) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 20;
  const absl::StatusOr<std::string> resolved = ReadRegular(PathIn(view, driver::kResolvedName), kMostBytes);
  if (resolved.ok()) return *resolved;
  return view.plan ? view.plan->recipe_text : "";
}

// Of the files in a folder; 0 where it cannot be read.
std::int64_t BytesIn(const std::string& folder) {
  std::error_code error;
  std::int64_t bytes = 0;
  fs::directory_iterator entry(folder, error);
  while (!error && entry != fs::directory_iterator()) {
    std::error_code gone;
    const std::uintmax_t size = entry->file_size(gone);
    if (!gone) bytes += static_cast<std::int64_t>(size);
    entry.increment(error);
  }
  return bytes;
}

std::string TokensText(const RunView& view) {
  const double tokens = view.last[metrics::kConsumedTokens];
  return std::isfinite(tokens) ? FormatCount(tokens) : "";
}

std::string IterationText(const RunView& view) {
  const std::optional<std::int64_t> iterations = view.Iterations();
  return iterations ? fmt::format("{} of {}", view.last.iteration, *iterations)
                    : fmt::format("{}", view.last.iteration);
}

Range WholeRange(const RunView& view, const metrics::Quantity& quantity) {
  Range range;
  for (const Bucket& bucket : view.history.Buckets()) range.Merge(bucket[quantity]);
  return range;
}

std::string MeanText(const RunView& view, const metrics::Quantity& quantity, std::string (*text)(double)) {
  const Range range = WholeRange(view, quantity);
  return range.empty() ? "" : text(range.mean());
}

std::string FactIn(const RunView& view, Section section, const char* name, std::string (*text)(double)) {
  const std::optional<double> value = view.plan ? view.plan->Fact(section, name) : std::nullopt;
  return value ? text(*value) : "";
}

// What is wrong with the runs or their files.
List NotesOf(const Runs& runs) {
  List notes;
  for (const ReportedRun& run : runs) {
    for (const Line& warning : Warnings(*run.view))
      notes.items.push_back(fmt::format("{}: {}", run.name, warning[0].text));
  }
  return notes;
}

// The values of a key in all runs, as TOML.
struct Setting {
  std::string key;
  std::vector<std::string> values;
};

// Keys that differ between the first run and another. Every run has its recipe.
std::vector<Setting> DifferingSettings(const Runs& runs) {
  const recipe::Recipe& first = *runs[0].view->plan->side.recipe;
  std::vector<Setting> settings;
  for (std::size_t i = 1; i < runs.size(); ++i) {
    for (const recipe::Change& change : recipe::Diff(first, *runs[i].view->plan->side.recipe)) {
      auto found = std::find_if(settings.begin(), settings.end(),
                                [&](const Setting& setting) { return setting.key == change.key; });
      if (found == settings.end())
        found = settings.insert(found, {change.key, std::vector<std::string>(runs.size(), change.before)});
      found->values[i] = change.after;
    }
  }
  return settings;
}

}  // namespace

std::vector<ReportedRun> ReportedRuns(const std::vector<const RunView*>& views) {
  const std::vector<std::string> names = NamesOf(views);
  std::vector<ReportedRun> runs;
  for (std::size_t i = 0; i < views.size(); ++i) {
    const RunView* view = views[i];
    ReportedRun run{
        .view = view, .name = names[i], .recipe_text = RecipeTextOf(*view), .checkpoint_bytes = {}};
    const std::string root = PathIn(*view, driver::kCheckpointsName);
    for (const std::int64_t iteration : view->kept_checkpoints)
      run.checkpoint_bytes[iteration] = BytesIn(checkpoint::IterationPath(root, iteration));
    runs.push_back(std::move(run));
  }
  return runs;
}

Table PropertyTable(const std::string& label, const Runs& runs, const std::vector<PropertyRow>& rows) {
  Table table{.label = label, .head = {""}, .words = true, .wraps = true};
  for (const ReportedRun& run : runs) table.head.push_back(run.name);
  for (const PropertyRow& row : rows) {
    std::vector<TableCell> cells = {{row.label}};
    bool says = false;
    for (const ReportedRun& run : runs) {
      cells.push_back({row.text(run), row.is_code, run.name, row.number});
      says = says || !cells.back().text.empty();
    }
    if (says) table.rows.push_back(std::move(cells));
  }
  return table;
}

Document OverviewSection(const Runs& runs, double now_unix_s) {
  constexpr double kMiddle = 0.5;
  const std::vector<PropertyRow> rows = {
      {"state", "state", [&](const ReportedRun& run) { return StateSpan(*run.view, now_unix_s).text; }},
      {"iteration", "iteration", [](const ReportedRun& run) { return IterationText(*run.view); }},
      {"tokens", "tokens", [](const ReportedRun& run) { return TokensText(*run.view); }},
      {"loss of the last iteration", "loss",
       [](const ReportedRun& run) { return LossText(run.view->last[metrics::kLoss]); }},
      {"last validation loss", "validation",
       [](const ReportedRun& run) {
         return run.view->last_evaluation ? LossText(run.view->last_evaluation->loss) : "";
       }},
      {"lowest validation loss", "lowest",
       [](const ReportedRun& run) {
         if (!run.view->best_evaluation) return std::string();
         return fmt::format("{} at {}", LossText(run.view->best_evaluation->loss),
                            run.view->best_evaluation->iteration);
       }},
      {"time", "wall", [](const ReportedRun& run) { return Duration(run.view->time.wall_s()); }},
      {"goodput", "goodput", [](const ReportedRun& run) { return Percent(run.view->time.goodput()); }},
      {"median iteration", "median",
       [](const ReportedRun& run) {
         return run.view->iteration_ms.empty() ? "" : Milliseconds(run.view->iteration_ms.Quantile(kMiddle));
       }},
      {"tokens/s, mean", "rate",
       [](const ReportedRun& run) { return MeanText(*run.view, metrics::kTokensPerSecond, RateText); }},
      {"MFU, mean", "mfu",
       [](const ReportedRun& run) { return MeanText(*run.view, metrics::kMfu, Percent); }},
      {"parameters", "parameters",
       [](const ReportedRun& run) { return FactIn(*run.view, Section::kWork, "parameters", FormatCount); }},
      {"layout", "layout",
       [](const ReportedRun& run) { return run.view->plan ? run.view->plan->layout : std::string(); }},
      {"computes in", "compute",
       [](const ReportedRun& run) { return run.view->plan ? Printable(run.view->plan->compute) : ""; }},
      {"plan", "plan",
       [](const ReportedRun& run) { return run.view->plan ? Printable(run.view->plan->side.hash) : ""; },
       /*is_code=*/true},
      {"recipe", "recipe", [](const ReportedRun& run) { return Printable(run.view->recipe_path); },
       /*is_code=*/true},
      {"host of rank 0", "host",
       [](const ReportedRun& run) { return run.view->outcome ? Printable(run.view->outcome->host) : ""; }},
      {"ended", "ended",
       [](const ReportedRun& run) { return run.view->outcome ? Printable(run.view->outcome->ended) : ""; }},
      {"folder", "folder", [](const ReportedRun& run) { return Printable(run.view->folder); },
       /*is_code=*/true}};
  Document document = {PropertyTable("What was run, and how it went", runs, rows)};
  const List notes = NotesOf(runs);
  if (!notes.items.empty()) document.push_back(notes);
  return document;
}

Document SettingsSection(const Runs& runs) {
  if (runs.size() < 2) return {};
  Document document = {Title{.text = "Settings that differ"}};
  for (const ReportedRun& run : runs) {
    if (run.view->plan && run.view->plan->side.recipe) continue;
    document.push_back(
        Text{fmt::format("Not compared: the recipe of {} is not known.", run.name), Text::Kind::kNote});
    return document;
  }
  Table table{.label = "Settings that differ between the runs", .head = {"setting"}, .words = true};
  for (const ReportedRun& run : runs) table.head.push_back(run.name);
  for (const Setting& setting : DifferingSettings(runs)) {
    std::vector<TableCell>& row = table.rows.emplace_back();
    row.push_back({.text = setting.key, .is_code = true});
    for (const std::string& value : setting.values) row.push_back({.text = value, .is_code = true});
  }
  if (table.rows.empty()) {
    document.push_back(Text{"None."});
  } else {
    document.push_back(std::move(table));
  }
  return document;
}

Document RecipesSection(const Runs& runs) {
  Document document = {Title{.text = "Recipe"}};
  for (const ReportedRun& run : runs) {
    if (run.recipe_text.empty()) continue;
    document.push_back(
        Listing{.title = fmt::format("The recipe of {}, with the origin of each value", run.name),
                .label = "Recipe of " + run.name,
                .text = run.recipe_text});
  }
  return document.size() > 1 ? document : Document();
}

Document ReportOf(const std::vector<ReportedRun>& runs, double now_unix_s) {
  Document report = {
      Title{.level = 1, .text = runs.size() == 1 ? runs[0].name : fmt::format("{} runs", runs.size())}};
  Append(OverviewSection(runs, now_unix_s), &report);
  constexpr std::array kSections = {CurvesSection, RanksSection,       GpusSection,     EventsSection,
                                    TimeSection,   PredictionSection,  MemorySection,   EvaluationsSection,
                                    TasksSection,  CheckpointsSection, SettingsSection, RecipesSection};
  for (const auto section : kSections) Append(section(runs), &report);
  report.push_back(Text{fmt::format("Written by engine {} on {} from the files of the runs' folders.",
                                    Version(), UtcText(now_unix_s)),
                        Text::Kind::kNote});
  return report;
}

}  // namespace engine::view
