#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "engine/base/units.h"
#include "engine/study/comparison.h"
#include "engine/study/html.h"
#include "engine/study/plot.h"
#include "engine/view/page_sections.h"
#include "engine/view/words.h"

namespace engine::view {

using predict::Section;
using study::Cell;
using study::EscapeHtml;
using study::Head;

namespace {

constexpr std::size_t kMostRows = 20;    // of a table of events: the newest
constexpr std::size_t kMostStages = 16;  // columns of a table of stages

// A reason that time went to.
struct Reason {
  const char* name;
  const char* number;
  double (TimeSplit::*seconds)() const;
};

constexpr std::array<Reason, 7> kReasons = {{{"training", "training", &TimeSplit::training_s},
                                             {"evaluation", "evaluation", &TimeSplit::evaluation_s},
                                             {"saving", "saving", &TimeSplit::saving_s},
                                             {"waiting for data", "data", &TimeSplit::data_wait_s},
                                             {"skipped iterations", "skipped", &TimeSplit::skipped_s},
                                             {"interruptions", "interruptions", &TimeSplit::interrupted_s},
                                             {"other", "other", &TimeSplit::other_s}}};

std::string ShareText(const TimeSplit& time, double seconds) {
  return time.wall_s() > 0 ? fmt::format("{} ({})", Duration(seconds), Percent(seconds / time.wall_s())) : "";
}

// One bar, the reasons side by side in the colours of plots.
std::string BarOf(const ReportedRun& run) {
  constexpr double kWidth = 480, kHeight = 22;
  const TimeSplit& time = run.view->time;
  std::string text = fmt::format(
      "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"Shares of the "
      "time of "
      "{}\">",
      EscapeHtml(run.name), kWidth, kHeight, EscapeHtml(run.name));
  double x = 0;
  for (std::size_t i = 0; i < kReasons.size(); ++i) {
    const double width = kWidth * (time.*kReasons[i].seconds)() / time.wall_s();
    text += fmt::format(
        "<rect class=\"c{}\" style=\"fill:var(--c)\" x=\"{:.2f}\" width=\"{:.2f}\" "
        "height=\"{}\"><title>{}</title></rect>",
        i, x, width, kHeight, kReasons[i].name);
    x += width;
  }
  return text + "</svg></figure>\n";
}

std::string Interruptions(const Runs& runs) {
  std::string rows;
  for (const ReportedRun& run : runs) {
    for (const Interruption& interruption : run.view->time.listed()) {
      rows += "<tr>" + Head(EscapeHtml(run.name), "row") +
              Cell(fmt::format("{}", interruption.after_iteration)) +
              Cell(UtcText(interruption.began_unix_s)) + Cell(Duration(interruption.seconds)) + "</tr>\n";
    }
  }
  if (rows.empty()) return "";
  return "<h3>Interruptions</h3>\n" +
         study::Table("Interruptions", {"run", "after iteration", "last record before", "lost"}, rows);
}

// Of facts of one stage each.
std::string StageCell(const study::Side& side, std::int64_t stage, const std::string& item) {
  for (const predict::Fact& fact : side.facts) {
    if (fact.key.section == Section::kMemory && fact.key.stage == stage && fact.key.name == item)
      return Cell(EscapeHtml(study::FactText(fact.unit, fact.value)));
  }
  return Cell(kUnknownText);
}

std::vector<std::string> MemoryItems(const study::Side& side, std::int64_t* stages) {
  std::vector<std::string> items;
  for (const predict::Fact& fact : side.facts) {
    if (fact.key.section != Section::kMemory || fact.key.stage < 0) continue;
    *stages = std::max(*stages, fact.key.stage + 1);
    if (std::find(items.begin(), items.end(), fact.key.name) == items.end()) items.push_back(fact.key.name);
  }
  return items;
}

std::string MemoryTable(const ReportedRun& run) {
  if (!run.view->plan) return "";
  const study::Side& side = run.view->plan->side;
  std::int64_t stages = 0;
  const std::vector<std::string> items = MemoryItems(side, &stages);
  const std::int64_t shown = std::min(stages, static_cast<std::int64_t>(kMostStages));
  std::vector<std::string> head = {"planned, of a rank"};
  for (std::int64_t stage = 0; stage < shown; ++stage) head.push_back(fmt::format("stage {}", stage));
  std::string rows;
  for (const std::string& item : items) {
    rows += "<tr>" + Head(EscapeHtml(item), "row");
    for (std::int64_t stage = 0; stage < shown; ++stage) rows += StageCell(side, stage, item);
    rows += "</tr>\n";
  }
  if (rows.empty()) return "";
  const double used = run.view->last[metrics::kMemoryBytes];
  std::string measured;
  if (std::isfinite(used))
    measured = fmt::format("<p>Measured: {} in use on rank 0's GPU, by all that run there.</p>\n",
                           FormatBytes(static_cast<std::int64_t>(used)));
  if (shown < stages) measured += fmt::format("<p class=\"note\">And {} more stages.</p>\n", stages - shown);
  return fmt::format("<h3>{}</h3>\n", EscapeHtml(run.name)) +
         study::Table("Memory of " + run.name, head, rows) + measured;
}

// The mean over the run, in the plan's unit; nullopt where there is none.
std::optional<double> MeasuredMean(const RunView& view, const metrics::Quantity& quantity) {
  Range range;
  for (const Bucket& bucket : view.history.Buckets()) range.Merge(bucket[quantity]);
  return range.empty() ? std::nullopt : std::optional(range.mean());
}

std::optional<double> MedianSeconds(const RunView& view) {
  if (view.iteration_ms.empty()) return std::nullopt;
  return view.iteration_ms.Quantile(0.5) / 1e3;
}

// What the plan predicts and the run measures.
struct Measured {
  const char* fact;  // of Section::kPrediction
  const char* how;
  std::optional<double> (*value)(const RunView&);
  std::string (*text)(double);
};

std::string SecondsText(double seconds) { return Milliseconds(seconds * 1e3); }

constexpr Measured kMeasured[] = {
    {"iteration", "median", MedianSeconds, SecondsText},
    {"tokens per second", "mean",
     [](const RunView& view) { return MeasuredMean(view, metrics::kTokensPerSecond); }, RateText},
    {"MFU", "mean", [](const RunView& view) { return MeasuredMean(view, metrics::kMfu); }, Percent},
    {"bubble", "", nullptr, Percent},
    {"exposed communication", "", nullptr, Percent}};

std::string PredictionRow(const ReportedRun& run, const Measured& row) {
  const std::optional<double> predicted =
      run.view->plan ? run.view->plan->Fact(Section::kPrediction, row.fact) : std::nullopt;
  if (!predicted) return "";
  const std::optional<double> measured = row.value != nullptr ? row.value(*run.view) : std::nullopt;
  const auto cell = [&](const char* number, const std::string& text) {
    return fmt::format("<td data-run=\"{}\" data-number=\"{} {}\">{}</td>", EscapeHtml(run.name), number,
                       row.fact, text);
  };
  const bool comparable = measured && *predicted > 0;
  return "<tr>" + Head(EscapeHtml(run.name), "row") + Cell(row.fact) +
         cell("predicted", row.text(*predicted)) +
         cell("measured", measured ? fmt::format("{}, {}", row.text(*measured), row.how) : kUnknownText) +
         Cell(comparable ? fmt::format("{:.3f}", *measured / *predicted) : kUnknownText) + "</tr>\n";
}

// What a table says that shows the newest alone; empty where it shows all.
std::string Newest(std::size_t shown, std::size_t all, const char* what) {
  return shown < all ? fmt::format("<p class=\"note\">The newest {} of {} {}.</p>\n", shown, all, what) : "";
}

std::string CheckpointTable(const ReportedRun& run) {
  const std::vector<CheckpointView>& records = run.view->checkpoint_records;
  const std::size_t shown = std::min(kMostRows, records.size());
  std::string rows;
  for (std::size_t i = records.size() - shown; i < records.size(); ++i) {
    const CheckpointView& record = records[i];
    const auto kept = run.checkpoint_bytes.find(record.iteration);
    rows += "<tr>" + Head(fmt::format("{}", record.iteration), "row") +
            Cell(record.ended_unix_s > 0 ? UtcText(record.ended_unix_s) : kUnknownText) +
            Cell(Duration(record.save_s)) + Cell(Duration(record.stall_s)) +
            Cell(kept == run.checkpoint_bytes.end() ? "deleted" : FormatBytes(kept->second)) + "</tr>\n";
  }
  if (rows.empty()) return "";
  return fmt::format("<h3>{}</h3>\n", EscapeHtml(run.name)) +
         study::Table("Checkpoints of " + run.name,
                      {"iteration", "whole on disk", "saved in", "training stood still", "size"}, rows) +
         Newest(shown, static_cast<std::size_t>(run.view->checkpoints), "checkpoints");
}

}  // namespace

std::string TimeSection(const Runs& runs) {
  std::vector<PropertyRow> rows;
  rows.reserve(std::size(kReasons) + 1);
  for (const Reason& reason : kReasons) {
    rows.push_back({reason.name, reason.number, [&reason](const ReportedRun& run) {
                      return ShareText(run.view->time, (run.view->time.*reason.seconds)());
                    }});
  }
  rows.push_back({"all", "all", [](const ReportedRun& run) {
                    return run.view->time.wall_s() > 0 ? Duration(run.view->time.wall_s()) : "";
                  }});
  const std::string table = PropertyTable("What the time went to", runs, rows);
  if (table.empty()) return "";
  std::string bars;
  for (const ReportedRun& run : runs) {
    if (run.view->time.wall_s() > 0) bars += BarOf(run);
  }
  std::vector<std::string> names;
  names.reserve(std::size(kReasons));
  for (const Reason& reason : kReasons) names.push_back(reason.name);
  return "<h2>Where the time went</h2>\n" + study::ColourKey("Colours of the reasons", names) +
         "<div class=\"plots\">\n" + bars + "</div>\n" + table + Interruptions(runs) +
         "<p class=\"note\">From the beginning of the first iteration to the last record; the share of "
         "training is the "
         "goodput. An interruption is a gap between two records that is longer than 5 s and three "
         "iterations: the run was "
         "down, started again, and ran iterations again whose records a resume has cut off. Other: shorter "
         "gaps. Of runs "
         "whose records have no time, from before there was one, gaps are not known.</p>\n";
}

std::string PredictionSection(const Runs& runs) {
  std::string rows;
  for (const ReportedRun& run : runs) {
    for (const Measured& row : kMeasured) rows += PredictionRow(run, row);
  }
  if (rows.empty()) return "";
  return "<h2>Predicted and measured</h2>\n" +
         study::Table("Predicted and measured", {"run", "", "predicted", "measured", "measured / predicted"},
                      rows);
}

std::string MemorySection(const Runs& runs) {
  std::string tables;
  for (const ReportedRun& run : runs) tables += MemoryTable(run);
  return tables.empty() ? "" : "<h2>Memory</h2>\n" + tables;
}

std::string EvaluationsSection(const Runs& runs) {
  std::string rows;
  for (const ReportedRun& run : runs) {
    std::vector<Bucket> buckets = run.view->history.Buckets();
    std::erase_if(buckets, [](const Bucket& bucket) { return bucket[metrics::kValidationLoss].empty(); });
    const std::size_t shown = std::min(kMostRows, buckets.size());
    for (std::size_t i = buckets.size() - shown; i < buckets.size(); ++i) {
      rows += "<tr>" + Head(EscapeHtml(run.name), "row") +
              Cell(fmt::format("{}", buckets[i].last_iteration)) +
              Cell(LossText(buckets[i][metrics::kValidationLoss].mean())) + "</tr>\n";
    }
  }
  if (rows.empty()) return "";
  return "<h2>Evaluations</h2>\n" +
         study::Table("Evaluations", {"run", "iteration, about", "validation loss"}, rows) +
         fmt::format("<p class=\"note\">At most the newest {} of each run.</p>\n", kMostRows);
}

std::string CheckpointsSection(const Runs& runs) {
  std::string tables;
  for (const ReportedRun& run : runs) tables += CheckpointTable(run);
  return tables.empty() ? "" : "<h2>Checkpoints</h2>\n" + tables;
}

}  // namespace engine::view
