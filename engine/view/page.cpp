#include "engine/view/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "engine/base/file.h"
#include "engine/base/units.h"
#include "engine/base/version.h"
#include "engine/checkpoint/layout.h"
#include "engine/driver/run_folder.h"
#include "engine/recipe/print.h"
#include "engine/study/html.h"
#include "engine/study/plot.h"
#include "engine/view/page_sections.h"
#include "engine/view/status_text.h"
#include "engine/view/words.h"

namespace engine::view {

namespace fs = std::filesystem;
using predict::Section;
using study::EscapeHtml;
using study::Head;

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

std::string PropertyTable(const std::string& label, const Runs& runs, const std::vector<PropertyRow>& rows) {
  std::string body;
  for (const PropertyRow& row : rows) {
    std::string cells;
    bool says = false;
    for (const ReportedRun& run : runs) {
      const std::string text = row.text(run);
      says = says || !text.empty();
      cells += fmt::format("<td data-run=\"{}\" data-number=\"{}\">{}</td>", EscapeHtml(run.name), row.number,
                           text.empty() ? kUnknownText : EscapeHtml(text));
    }
    if (says) body += fmt::format("<tr>{}{}</tr>\n", Head(EscapeHtml(row.label), "row"), cells);
  }
  if (body.empty()) return "";
  std::vector<std::string> head = {""};
  for (const ReportedRun& run : runs) head.push_back(EscapeHtml(run.name));
  return "<div class=\"wrap\">" + study::Table(label, head, body, /*words=*/true) + "</div>\n";
}

std::string OverviewSection(const Runs& runs, double now_unix_s) {
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
       [](const ReportedRun& run) { return run.view->plan ? Printable(run.view->plan->side.hash) : ""; }},
      {"recipe", "recipe", [](const ReportedRun& run) { return Printable(run.view->recipe_path); }},
      {"host of rank 0", "host",
       [](const ReportedRun& run) { return run.view->outcome ? Printable(run.view->outcome->host) : ""; }},
      {"ended", "ended",
       [](const ReportedRun& run) { return run.view->outcome ? Printable(run.view->outcome->ended) : ""; }},
      {"folder", "folder", [](const ReportedRun& run) { return Printable(run.view->folder); }}};
  return PropertyTable("What was run, and how it went", runs, rows) + NotesSection(runs);
}

std::string NotesSection(const Runs& runs) {
  std::string items;
  for (const ReportedRun& run : runs) {
    for (const Line& warning : Warnings(*run.view))
      items += fmt::format("<li>{}: {}</li>\n", EscapeHtml(run.name), EscapeHtml(warning[0].text));
  }
  return items.empty() ? "" : "<ul>\n" + items + "</ul>\n";
}

std::string SettingsSection(const Runs& runs) {
  if (runs.size() < 2) return "";
  const std::string title = "<h2>Settings that differ</h2>\n";
  for (const ReportedRun& run : runs) {
    if (!run.view->plan || !run.view->plan->side.recipe)
      return fmt::format("{}<p class=\"note\">Not compared: the recipe of {} is not known.</p>\n", title,
                         EscapeHtml(run.name));
  }
  std::string rows;
  for (const Setting& setting : DifferingSettings(runs)) {
    rows += "<tr>" + Head("<code>" + EscapeHtml(setting.key) + "</code>", "row");
    for (const std::string& value : setting.values)
      rows += study::Cell("<code>" + EscapeHtml(value.empty() ? kUnknownText : value) + "</code>");
    rows += "</tr>\n";
  }
  if (rows.empty()) return title + "<p>None.</p>\n";
  std::vector<std::string> head = {"setting"};
  for (const ReportedRun& run : runs) head.push_back(EscapeHtml(run.name));
  return title + study::Table("Settings that differ between the runs", head, rows, /*words=*/true);
}

std::string RecipesSection(const Runs& runs) {
  std::string text;
  for (const ReportedRun& run : runs) {
    if (run.recipe_text.empty()) continue;
    text += fmt::format(
        "<details><summary>The recipe of {}, with the origin of each value</summary>\n<div class=\"scroll\" "
        "role=\"region\" tabindex=\"0\" aria-label=\"Recipe of {}\"><pre>{}</pre></div></details>\n",
        EscapeHtml(run.name), EscapeHtml(run.name), EscapeHtml(run.recipe_text));
  }
  return text.empty() ? "" : "<h2>Recipe</h2>\n" + text;
}

std::string RunsPage(const std::vector<ReportedRun>& runs, double now_unix_s) {
  std::string page = study::PageBegin(runs.size() == 1 ? runs[0].name : fmt::format("{} runs", runs.size()));
  page += OverviewSection(runs, now_unix_s) + CurvesSection(runs) + TimeSection(runs) +
          PredictionSection(runs) + MemorySection(runs) + EvaluationsSection(runs) +
          CheckpointsSection(runs) + SettingsSection(runs) + RecipesSection(runs);
  page +=
      fmt::format("<p class=\"note\">Written by engine {} on {} from the files of the runs' folders.</p>\n",
                  Version(), UtcText(now_unix_s));
  return page + study::kPageEnd;
}

}  // namespace engine::view
