#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "engine/base/units.h"
#include "engine/study/comparison.h"
#include "engine/study/html.h"
#include "engine/study/plot.h"
#include "engine/view/lines.h"
#include "engine/view/page_sections.h"
#include "engine/view/words.h"

namespace engine::view {

using predict::Section;
using study::EscapeHtml;

namespace {

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

// Of facts of one stage each.
std::string StageText(const study::Side& side, std::int64_t stage, const std::string& item) {
  for (const predict::Fact& fact : side.facts) {
    if (fact.key.section == Section::kMemory && fact.key.stage == stage && fact.key.name == item)
      return study::FactText(fact.unit, fact.value);
  }
  return "";
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

Document MemoryOf(const ReportedRun& run) {
  if (!run.view->plan) return {};
  const study::Side& side = run.view->plan->side;
  std::int64_t stages = 0;
  const std::vector<std::string> items = MemoryItems(side, &stages);
  if (items.empty()) return {};
  const std::int64_t shown = std::min(stages, static_cast<std::int64_t>(kMostStages));
  Table table{.label = "Memory of " + run.name, .head = {"planned, of a rank"}};
  for (std::int64_t stage = 0; stage < shown; ++stage) table.head.push_back(fmt::format("stage {}", stage));
  for (const std::string& item : items) {
    std::vector<TableCell>& row = table.rows.emplace_back();
    row.push_back({item});
    for (std::int64_t stage = 0; stage < shown; ++stage) row.push_back({StageText(side, stage, item)});
  }
  Document document = {Title{.level = 3, .text = run.name}, std::move(table)};
  const double used = run.view->last[metrics::kMemoryBytes];
  if (std::isfinite(used))
    document.push_back(Text{fmt::format("Measured: {} in use on rank 0's GPU, by all that run there.",
                                        FormatBytes(static_cast<std::int64_t>(used)))});
  if (shown < stages)
    document.push_back(Text{fmt::format("And {} more stages.", stages - shown), Text::Kind::kNote});
  return document;
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

// Empty where the plan does not predict it.
std::vector<TableCell> PredictionRow(const ReportedRun& run, const Measured& row) {
  const std::optional<double> predicted =
      run.view->plan ? run.view->plan->Fact(Section::kPrediction, row.fact) : std::nullopt;
  if (!predicted) return {};
  const std::optional<double> measured = row.value != nullptr ? row.value(*run.view) : std::nullopt;
  const auto cell = [&](const char* number, const std::string& text) {
    return TableCell{.text = text, .run = run.name, .number = fmt::format("{} {}", number, row.fact)};
  };
  std::string measured_text, ratio;
  if (measured) measured_text = fmt::format("{}, {}", row.text(*measured), row.how);
  if (measured && *predicted > 0) ratio = fmt::format("{:.3f}", *measured / *predicted);
  return {{run.name},
          {row.fact},
          cell("predicted", row.text(*predicted)),
          cell("measured", measured_text),
          {ratio}};
}

Document CheckpointsOf(const ReportedRun& run) {
  const std::vector<CheckpointView>& records = run.view->checkpoint_records;
  if (records.empty()) return {};
  const std::size_t shown = std::min(kMostRows, records.size());
  Table table{.label = "Checkpoints of " + run.name,
              .head = {"iteration", "whole on disk", "saved in", "training stood still", "size"}};
  for (std::size_t i = records.size() - shown; i < records.size(); ++i) {
    const CheckpointView& record = records[i];
    const auto kept = run.checkpoint_bytes.find(record.iteration);
    table.rows.push_back({{fmt::format("{}", record.iteration)},
                          {record.ended_unix_s > 0 ? UtcText(record.ended_unix_s) : ""},
                          {Duration(record.save_s)},
                          {Duration(record.stall_s)},
                          {kept == run.checkpoint_bytes.end() ? "deleted" : FormatBytes(kept->second)}});
  }
  Document document = {Title{.level = 3, .text = run.name}, std::move(table)};
  const auto all = static_cast<std::size_t>(run.view->checkpoints);
  if (shown < all)
    document.push_back(Text{fmt::format("The newest {} of {} checkpoints.", shown, all), Text::Kind::kNote});
  return document;
}

// Of each run a part, below a headline; empty where no run has one.
Document SectionOf(const char* headline, const Runs& runs, Document (*part)(const ReportedRun&)) {
  Document document = {Title{.text = headline}};
  for (const ReportedRun& run : runs) Append(part(run), &document);
  return document.size() > 1 ? document : Document();
}

}  // namespace

Document TimeSection(const Runs& runs) {
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
  Table table = PropertyTable("What the time went to", runs, rows);
  if (table.rows.empty()) return {};
  std::string bars;
  for (const ReportedRun& run : runs) {
    if (run.view->time.wall_s() > 0) bars += BarOf(run);
  }
  std::vector<std::string> names;
  names.reserve(std::size(kReasons));
  for (const Reason& reason : kReasons) names.push_back(reason.name);
  Document document = {Title{.text = "Where the time went"},
                       Picture{study::ColourKey("Colours of the reasons", names) + "<div class=\"plots\">\n" +
                               bars + "</div>\n"},
                       std::move(table)};
  document.push_back(Text{
      "From the beginning of the first iteration to the last record; the share of training is the goodput. "
      "Interruptions are gaps before records of a resumed run, and gaps between two records that are longer "
      "than "
      "5 s and three iterations. Other: shorter gaps. Of runs whose records have no time, from before there "
      "was "
      "one, gaps are not known.",
      Text::Kind::kNote});
  return document;
}

Document PredictionSection(const Runs& runs) {
  Table table{.label = "Predicted and measured",
              .head = {"run", "", "predicted", "measured", "measured / predicted"}};
  for (const ReportedRun& run : runs) {
    for (const Measured& row : kMeasured) {
      std::vector<TableCell> cells = PredictionRow(run, row);
      if (!cells.empty()) table.rows.push_back(std::move(cells));
    }
  }
  if (table.rows.empty()) return {};
  return {Title{.text = "Predicted and measured"}, std::move(table)};
}

Document MemorySection(const Runs& runs) { return SectionOf("Memory", runs, MemoryOf); }

Document EvaluationsSection(const Runs& runs) {
  Table table{.label = "Evaluations", .head = {"run", "iteration", "validation loss"}};
  for (const ReportedRun& run : runs) {
    const std::vector<EvaluationView>& records = run.view->evaluation_records;
    for (std::size_t i = records.size() - std::min(kMostRows, records.size()); i < records.size(); ++i)
      table.rows.push_back(
          {{run.name}, {fmt::format("{}", records[i].iteration)}, {LossText(records[i].loss)}});
  }
  if (table.rows.empty()) return {};
  return {Title{.text = "Evaluations"}, std::move(table),
          Text{fmt::format("At most the newest {} of each run.", kMostRows), Text::Kind::kNote}};
}

Document TasksSection(const Runs& runs) {
  Table table{.label = "Tasks", .head = {"run", "iteration", "task", "value"}};
  for (const ReportedRun& run : runs) {
    const std::vector<EvaluationView>& records = run.view->evaluation_records;
    if (records.empty()) continue;
    for (const TaskView& task : records.back().tasks) {
      table.rows.push_back({{run.name},
                            {fmt::format("{}", records.back().iteration)},
                            {Printable(task.name)},
                            {WithError(task.value, task.standard_error)}});
    }
  }
  if (table.rows.empty()) return {};
  return {Title{.text = "Tasks"}, std::move(table),
          Text{"Of the last evaluation; ± is the standard error.", Text::Kind::kNote}};
}

Document CheckpointsSection(const Runs& runs) { return SectionOf("Checkpoints", runs, CheckpointsOf); }

}  // namespace engine::view
