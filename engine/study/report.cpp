#include "engine/study/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/units.h"
#include "engine/base/version.h"
#include "engine/study/html.h"
#include "engine/study/plot.h"

namespace engine::study {
namespace {

constexpr std::size_t kPlotted = 100;   // points of a curve: means over as many equal stretches of iterations
constexpr std::size_t kTabulated = 10;  // rows of the table of a curve's values
constexpr double kWarmUp = 0.05;        // share of the points whose larger losses may lie above the plot

std::string Loss(double loss) { return fmt::format("{:.4f}", loss); }
std::string Time(double seconds) {
  if (seconds <= 0) return "–";
  return seconds < 1 ? fmt::format("{:.1f} ms", seconds * 1e3) : fmt::format("{:.2f} s", seconds);
}
std::string Bytes(std::int64_t bytes) { return bytes > 0 ? FormatBytes(bytes) : "–"; }

// "2.1034 ± 0.0021"
std::string Spread(const Statistics& statistics, bool sign) {
  if (statistics.count == 0) return "–";
  std::string text = fmt::format(fmt::runtime(sign ? "{:+.4f}" : "{:.4f}"), statistics.mean);
  if (statistics.count > 1) text += fmt::format(" ± {:.4f}", statistics.deviation);
  return text;
}

std::string RunCell(const VariantResult& variant, const RunResult& run, const char* number,
                    const std::string& text) {
  return fmt::format("<td data-run=\"{}/seed-{}\" data-number=\"{}\">{}</td>", EscapeHtml(variant.name),
                     run.seed, number, text);
}

std::string MetricTable(const StudyResults& results) {
  std::vector<std::string> head = {"variant", "mean ± deviation",
                                   "from " + EscapeHtml(results.variants[0].name)};
  for (const RunResult& run : results.variants[0].runs) head.push_back(fmt::format("seed {}", run.seed));
  std::string rows;
  for (const VariantResult& variant : results.variants) {
    rows += fmt::format("<tr>{}<td data-variant=\"{}\" data-number=\"mean\">{}</td>",
                        Head(EscapeHtml(variant.name), "row"), EscapeHtml(variant.name),
                        Spread(variant.metric, false));
    rows += Cell(&variant == results.variants.data() ? "" : Spread(variant.difference, true));
    for (const RunResult& run : variant.runs) {
      rows += RunCell(variant, run, "metric", run.finished ? Loss(run.metric) : "–");
    }
    rows += "</tr>\n";
  }
  return Table("Final metric by variant and seed", head, rows);
}

double MeanOf(const VariantResult& variant, double (*number)(const RunResult&)) {
  std::vector<double> numbers;
  for (const RunResult& run : variant.runs) {
    if (run.finished) numbers.push_back(number(run));
  }
  return StatisticsOf(numbers).mean;
}

std::string CostTable(const StudyResults& results) {
  std::string rows;
  for (const VariantResult& variant : results.variants) {
    const double measured = MeanOf(variant, [](const RunResult& run) { return run.iteration_s; });
    std::int64_t peak = 0;
    for (const RunResult& run : variant.runs) peak = std::max(peak, run.peak_memory_bytes);
    rows += "<tr>" + Head(EscapeHtml(variant.name), "row") + Cell(WithThousands(variant.parameters)) +
            Cell(FormatCount(variant.flops_per_token)) + Cell(Bytes(variant.arena_bytes)) +
            Cell(Bytes(peak)) + Cell(Time(variant.predicted_iteration_s)) +
            fmt::format("<td data-variant=\"{}\" data-number=\"iteration\">{}</td>", EscapeHtml(variant.name),
                        Time(measured)) +
            Cell(FormatCount(MeanOf(variant, [](const RunResult& run) { return run.tokens_per_s; }))) +
            Cell(Time(MeanOf(
                variant,
                [](const RunResult& run) { return run.train.empty() ? 0.0 : run.train.back().seconds; }))) +
            "</tr>\n";
  }
  return Table("Cost by variant",
               {"variant", "parameters", "FLOPs a token", "memory, predicted", "memory, measured",
                "iteration, predicted", "iteration, measured", "tokens/s", "training"},
               rows);
}

// Empty where no variant was asked a task.
std::string Tasks(const StudyResults& results) {
  std::string rows;
  for (const VariantResult& variant : results.variants) {
    for (const TaskStatistics& task : variant.tasks) {
      rows += "<tr>" + Head(EscapeHtml(variant.name), "row") + Cell(EscapeHtml(task.name)) +
              fmt::format("<td data-variant=\"{}\" data-number=\"task\">{}</td>", EscapeHtml(variant.name),
                          WithMargin(task.mean, task.margin)) +
              Cell(WithMargin(task.difference, task.difference_margin)) + "</tr>\n";
    }
  }
  if (rows.empty()) return "";
  return "<h2>Tasks</h2>\n" +
         Table("Tasks by variant",
               {"variant", "task", "mean over seeds", "difference from the first variant"}, rows) +
         "<p class=\"note\">Of the last evaluation. ± is half an interval of 95 %: by Student's t over "
         "seeds, or, of one seed, by the "
         "standard error over the task's examples; a difference's over those of each example where both runs "
         "had the "
         "same.</p>\n";
}

// The mean of each of `count` stretches of a curve, over iterations and over runs; the band is between the
// runs with the lowest and the highest.
std::vector<std::pair<CurvePoint, PlotPoint>> Means(const VariantResult& variant, std::size_t count) {
  std::vector<const RunResult*> runs;
  std::size_t length = 0;
  for (const RunResult& run : variant.runs) {
    if (!run.finished) continue;
    length = runs.empty() ? run.train.size() : std::min(length, run.train.size());
    runs.push_back(&run);
  }
  count = std::min(count, length);
  std::vector<std::pair<CurvePoint, PlotPoint>> means;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t begin = i * length / count, end = (i + 1) * length / count;
    CurvePoint mean;
    PlotPoint band;
    for (const RunResult* run : runs) {
      double loss = 0;
      for (std::size_t at = begin; at < end; ++at)
        loss += run->train[at].loss / static_cast<double>(end - begin);
      const double share = 1.0 / static_cast<double>(runs.size());
      mean.tokens += run->train[end - 1].tokens * share;
      mean.seconds += run->train[end - 1].seconds * share;
      mean.loss += loss * share;
      band.low = run == runs[0] ? loss : std::min(band.low, loss);
      band.high = run == runs[0] ? loss : std::max(band.high, loss);
    }
    means.emplace_back(mean, band);
  }
  return means;
}

// Evaluations, mean over the finished runs.
std::vector<CurvePoint> Evaluations(const VariantResult& variant) {
  std::vector<CurvePoint> means;
  double runs = 0;
  for (const RunResult& run : variant.runs) {
    if (!run.finished) continue;
    ++runs;
    if (runs == 1) means.resize(run.validation.size());
    means.resize(std::min(means.size(), run.validation.size()));
    for (std::size_t i = 0; i < means.size(); ++i) {
      means[i].tokens += run.validation[i].tokens;
      means[i].seconds += run.validation[i].seconds;
      means[i].loss += run.validation[i].loss;
    }
  }
  for (CurvePoint& mean : means) mean = {mean.tokens / runs, mean.seconds / runs, mean.loss / runs};
  return means;
}

std::string CurvePlot(const StudyResults& results, bool over_time) {
  Plot plot{.id = over_time ? "time" : "tokens",
            .title = over_time ? "Loss over time" : "Loss over tokens",
            .description = {},
            .x_label = over_time ? "seconds of training" : "tokens",
            .y_label = "loss, nats per token",
            .lines = {}};
  for (const VariantResult& variant : results.variants) {
    PlotLine& line = plot.lines.emplace_back();
    line.name = variant.name;
    for (const auto& [mean, band] : Means(variant, kPlotted)) {
      line.points.push_back({over_time ? mean.seconds : mean.tokens, mean.loss, band.low, band.high});
    }
    for (const CurvePoint& mean : Evaluations(variant)) {
      line.marks.push_back({over_time ? mean.seconds : mean.tokens, mean.loss});
    }
    if (line.points.empty()) continue;
    const auto early = static_cast<std::size_t>(kWarmUp * static_cast<double>(line.points.size()));
    plot.top = std::max(plot.top, line.points[early].high);
    plot.description +=
        fmt::format("{}: from {:.3f} to {:.3f} after {} {}. ", variant.name, line.points.front().y,
                    line.points.back().y, FormatCount(line.points.back().x), plot.x_label);
  }
  const std::string svg = SvgOf(plot);
  if (svg.empty()) return "";
  return fmt::format("<figure>\n<h3>{}</h3>\n{}</figure>\n", plot.title, svg);
}

std::string Key(const StudyResults& results) {
  std::vector<std::string> names;
  for (const VariantResult& variant : results.variants) names.push_back(variant.name);
  return ColourKey("Colours of the variants", names);
}

// The plots' text alternative: tokens, seconds and loss of each variant at a few places.
std::string CurveTable(const StudyResults& results) {
  std::string rows;
  for (const VariantResult& variant : results.variants) {
    for (const auto& [mean, band] : Means(variant, kTabulated)) {
      rows += "<tr>" + Head(EscapeHtml(variant.name), "row") + Cell(FormatCount(mean.tokens)) +
              Cell(Time(mean.seconds)) +
              fmt::format("<td data-variant=\"{}\" data-number=\"curve\">{}</td>", EscapeHtml(variant.name),
                          Loss(mean.loss)) +
              Cell(Loss(band.low)) + Cell(Loss(band.high)) + "</tr>\n";
    }
  }
  return "<details><summary>The curves as a table</summary>\n" +
         Table("Training loss by tokens and time",
               {"variant", "tokens", "time", "loss, mean", "lowest seed", "highest seed"}, rows) +
         "</details>\n";
}

std::string Curves(const StudyResults& results) {
  const std::string tokens = CurvePlot(results, false);
  if (tokens.empty()) return "<p>No run has finished yet.</p>\n";
  return Key(results) + "<div class=\"plots\">\n" + tokens + CurvePlot(results, true) + "</div>\n" +
         fmt::format(
             "<p class=\"note\">Lines: training loss, mean over seeds and over up to {} equal stretches of "
             "iterations; bands: from the seed with the lowest to the one with the highest; dots: validation "
             "loss, "
             "mean over seeds. The first {:.0f} % may lie above the plot. Time is that of training alone, "
             "without "
             "evaluations and checkpoints.</p>\n",
             kPlotted, kWarmUp * 100) +
         CurveTable(results);
}

std::string Settings(const StudyResults& results) {
  std::string rows;
  for (const VariantResult& variant : results.variants) {
    for (const SettingChange& change : variant.settings) {
      rows +=
          fmt::format("<tr>{}<td><code>{}</code></td><td><code>{}</code></td><td><code>{}</code></td></tr>\n",
                      Head(EscapeHtml(variant.name), "row"), EscapeHtml(change.key), EscapeHtml(change.a),
                      EscapeHtml(change.b));
    }
  }
  return Table("Settings that differ from the base recipe", {"variant", "setting", "base", "variant has"},
               rows, true);
}

std::string Unfinished(const StudyResults& results) {
  std::string rows;
  for (const VariantResult& variant : results.variants) {
    for (const RunResult& run : variant.runs) {
      if (run.finished) continue;
      rows += fmt::format("<tr>{}<td>{}</td><td class=\"last\">{}</td></tr>\n",
                          Head(EscapeHtml(variant.name), "row"), run.seed,
                          run.last_line.empty() ? "not started" : EscapeHtml(run.last_line));
    }
  }
  if (rows.empty()) return "";
  return "<h2>Not finished</h2>\n" +
         Table("Runs that have not finished", {"variant", "seed", "last line of its log"}, rows, true);
}

}  // namespace

std::string ReportPage(const StudyResults& results) {
  std::string page = PageBegin(results.title);
  page += fmt::format(
      "<p>{} variants of <code>{}</code>, {} of {} runs finished. The metric is the {}, in nats per token; "
      "lower is better.</p>\n",
      results.variants.size(), EscapeHtml(results.base), results.finished, results.runs,
      EscapeHtml(results.metric));
  page += "<h2>Result</h2>\n" + MetricTable(results);
  page +=
      "<p class=\"note\">± is the sample standard deviation over seeds. Differences are taken seed by seed: "
      "runs of one "
      "seed see the same samples in the same order.</p>\n";
  page += Tasks(results) + "<h2>Loss</h2>\n" + Curves(results);
  page += "<h2>Cost</h2>\n" + CostTable(results);
  page +=
      "<p class=\"note\">FLOPs: matrix products and attention, forward and backward, recomputation included, "
      "without the pairs that are masked. "
      "Memory predicted: the arenas of all ranks, from the plan; measured: the largest resident set of the "
      "process, "
      "which on the CPU holds arenas, data and program. Iteration: predicted from the plan and the rates in "
      "[cluster]; "
      "measured: the median of a run, mean over seeds.</p>\n";
  page += "<h2>Settings</h2>\n" + Settings(results) + Unfinished(results);
  page +=
      fmt::format("<p class=\"note\">Written by engine {} from the runs' metrics.jsonl.</p>\n", Version());
  return page + kPageEnd;
}

}  // namespace engine::study
