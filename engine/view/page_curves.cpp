#include <fmt/format.h>

#include <algorithm>

#include "engine/base/units.h"
#include "engine/study/html.h"
#include "engine/study/plot.h"
#include "engine/view/page_sections.h"

namespace engine::view {
namespace {

constexpr std::size_t kPlottedPoints = 400;  // of a curve; of several runs together four times as many
constexpr double kEarly = 0.05;              // share of the points whose larger values may lie above a plot

// What curves are drawn over.
struct Axis {
  const char* id;
  const char* label;
  double (*at)(const Bucket&);
};

constexpr Axis kIterationAxis = {
    "iterations", "iterations", [](const Bucket& bucket) {
      return static_cast<double>(bucket.first_iteration + bucket.last_iteration) / 2;
    }};
constexpr Axis kTokenAxis = {"tokens", "tokens", [](const Bucket& bucket) {
                               const Range& tokens = bucket[metrics::kConsumedTokens];
                               return tokens.empty() ? 0 : tokens.mean();
                             }};
constexpr Axis kTimeAxis = {"time", "seconds of training", [](const Bucket& bucket) { return bucket.end_s; }};

struct Drawn {
  const char* title;
  const metrics::Quantity* quantity;
  double factor;  // to the unit of the plot
  const char* label;
  const Axis* axis;
  bool cuts_early;  // large values of the beginning may lie above the plot
};

constexpr Drawn kDrawn[] = {
    {"Loss over iterations", &metrics::kLoss, 1, "nats per token", &kIterationAxis, true},
    {"Loss over tokens", &metrics::kLoss, 1, "nats per token", &kTokenAxis, true},
    {"Loss over time", &metrics::kLoss, 1, "nats per token", &kTimeAxis, true},
    {"Gradient norm", &metrics::kGradNorm, 1, "norm, before clipping", &kIterationAxis, true},
    {"Learning rate", &metrics::kLearningRate, 1, "learning rate", &kIterationAxis, false},
    {"Throughput", &metrics::kTokensPerSecond, 1, "tokens/s", &kIterationAxis, false},
    {"MFU", &metrics::kMfu, 100, "% of the peak", &kIterationAxis, false},
    {"Time of an iteration", &metrics::kElapsed, 1, "milliseconds", &kIterationAxis, true},
    {"Waiting for data", &metrics::kDataWait, 1, "milliseconds", &kIterationAxis, true},
    {"Loss scale", &metrics::kLossScale, 1, "factor", &kIterationAxis, false},
};

study::PlotLine LineOf(const ReportedRun& run, const Drawn& drawn, std::size_t points) {
  study::PlotLine line{.name = run.name, .points = {}, .marks = {}};
  for (const Bucket& bucket : run.view->history.Buckets(points)) {
    const double x = drawn.axis->at(bucket);
    const Range& range = bucket[*drawn.quantity];
    const double factor = drawn.factor;
    if (!range.empty() && x > 0)
      line.points.push_back({x, range.mean() * factor, range.min * factor, range.max * factor});
    const Range& validation = bucket[metrics::kValidationLoss];
    if (drawn.quantity == &metrics::kLoss && !validation.empty() && x > 0)
      line.marks.push_back({x, validation.mean()});
  }
  return line;
}

// Whether a run has more than one value of it; a loss scale that never moves is none.
bool Says(const study::Plot& plot, const Drawn& drawn) {
  const bool constant_says_nothing = drawn.quantity == &metrics::kLossScale;
  for (const study::PlotLine& line : plot.lines) {
    if (!constant_says_nothing && !line.points.empty()) return true;
    for (const study::PlotPoint& point : line.points) {
      if (point.low != line.points[0].low || point.high != line.points[0].low) return true;
    }
  }
  return false;
}

std::string FigureOf(const Runs& runs, const Drawn& drawn) {
  const std::size_t points = std::min(kPlottedPoints, 4 * kPlottedPoints / runs.size() + 1);
  study::Plot plot{.id = fmt::format("{}-{}", drawn.quantity->key, drawn.axis->id),
                   .title = drawn.title,
                   .description = {},
                   .x_label = drawn.axis->label,
                   .y_label = drawn.label,
                   .lines = {}};
  for (const ReportedRun& run : runs) {
    const study::PlotLine& line = plot.lines.emplace_back(LineOf(run, drawn, points));
    if (line.points.empty()) continue;
    const auto early = static_cast<std::size_t>(kEarly * static_cast<double>(line.points.size()));
    for (std::size_t i = early; i < line.points.size() && drawn.cuts_early; ++i)
      plot.top = std::max(plot.top, line.points[i].high);
    plot.description +=
        fmt::format("{}: from {:.4g} to {:.4g}. ", run.name, line.points.front().y, line.points.back().y);
  }
  if (!Says(plot, drawn)) return "";
  return fmt::format("<figure>\n<h3>{}</h3>\n{}</figure>\n", drawn.title, study::SvgOf(plot));
}

}  // namespace

Document CurvesSection(const Runs& runs) {
  Document document = {Title{.text = "Curves"}};
  std::string figures;
  for (const Drawn& drawn : kDrawn) figures += FigureOf(runs, drawn);
  if (figures.empty()) {
    document.push_back(Text{"No iteration is recorded."});
    return document;
  }
  std::vector<std::string> names;
  for (const ReportedRun& run : runs) names.push_back(run.name);
  const std::string key = runs.size() > 1 ? study::ColourKey("Colours of the runs", names) : "";
  document.push_back(Picture{key + "<div class=\"plots\">\n" + figures + "</div>\n"});
  document.push_back(Text{
      fmt::format("Lines: means over up to {} equal stretches of iterations; bands: from the smallest to the "
                  "largest value in each; dots: validation loss. The first {:.0f} % may lie above a plot. "
                  "Time is that of training alone, without evaluations, checkpoints and interruptions.",
                  kPlottedPoints, kEarly * 100),
      Text::Kind::kOfPicture});
  return document;
}

}  // namespace engine::view
