#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/view/frame.h"
#include "engine/view/glyphs.h"
#include "engine/view/status_text.h"
#include "engine/view/words.h"

namespace engine::view {
namespace {

// A column of the table: what it is called, what it says of a run, and how soon it goes where columns do not fit.
struct Column {
  const char* name;
  Span (*text)(const RunView&, double now_unix_s);
  int leaves;  // the largest goes first; 0: never
};

Span Iteration(const RunView& view, double /*now*/) {
  const std::optional<std::int64_t> iterations = view.Iterations();
  return {iterations ? fmt::format("{}/{}", view.last.iteration, *iterations)
                     : fmt::format("{}", view.last.iteration)};
}

Span Left(const RunView& view, double now_unix_s) {
  const std::optional<RunView::TimeLeft> left = view.Left();
  if (!left || view.StateAt(now_unix_s) != RunView::State::kRunning) return {""};
  return {Duration(left->seconds)};
}

Span Validation(const RunView& view, double /*now*/) {
  return {view.last_evaluation ? LossText(view.last_evaluation->loss) : ""};
}

Span Checkpoint(const RunView& view, double /*now*/) {
  const std::optional<CheckpointView> newest = NewestCheckpoint(view);
  return {newest ? fmt::format("{}", newest->iteration) : ""};
}

template <const metrics::Quantity& quantity, std::string (*text)(double)>
Span Last(const RunView& view, double /*now*/) {
  const double value = view.last[quantity];
  return {std::isfinite(value) ? text(value) : ""};
}

constexpr Column kColumns[] = {
    {"state", StateSpan, 0},
    {"iteration", Iteration, 0},
    {"left", Left, 2},
    {"loss", Last<metrics::kLoss, LossText>, 1},
    {"validation", Validation, 3},
    {"gradient norm", Last<metrics::kGradNorm, Significant>, 7},
    {"tokens/s", Last<metrics::kTokensPerSecond, RateText>, 4},
    {"MFU", Last<metrics::kMfu, Percent>, 5},
    {"checkpoint", Checkpoint, 6},
};
constexpr std::size_t kMostNameColumns = 32;
constexpr std::size_t kMostCurveColumns = 40, kLeastCurveColumns = 10;

struct Filled {
  const Column* column;
  std::vector<Span> cells;  // by run
  std::size_t width;
};

constexpr Column kNameColumn = {"run", nullptr, 0};

Filled NamesOf(const std::vector<std::string>& names) {
  Filled filled{&kNameColumn, {}, ColumnsOf(kNameColumn.name)};
  for (const std::string& name : names) filled.width = std::max(filled.width, ColumnsOf(name));
  filled.width = std::min(filled.width, kMostNameColumns);
  for (const std::string& name : names) filled.cells.push_back({Fitted(name, filled.width), Style::kBold});
  return filled;
}

std::vector<Filled> Fill(const std::vector<const RunView*>& views, const std::vector<std::string>& names,
                         double now_unix_s) {
  std::vector<Filled> columns = {NamesOf(names)};
  for (const Column& column : kColumns) {
    Filled filled{&column, {}, ColumnsOf(column.name)};
    bool says = false;
    for (const RunView* view : views) {
      Span cell = column.text(*view, now_unix_s);
      says = says || !cell.text.empty();
      filled.width = std::max(filled.width, ColumnsOf(cell.text));
      filled.cells.push_back(std::move(cell));
    }
    for (Span& cell : filled.cells) cell.text = Fitted(cell.text, filled.width);
    if (says) columns.push_back(std::move(filled));
  }
  return columns;
}

constexpr std::size_t kBetween = 2;

std::size_t WidthOf(const std::vector<Filled>& columns) {
  std::size_t width = 0;
  for (const Filled& column : columns) width += column.width + kBetween;
  return width;
}

void LeaveOut(std::vector<Filled>* columns, std::size_t most) {
  while (WidthOf(*columns) > most + kBetween) {
    const auto first = std::max_element(
        columns->begin(), columns->end(),
        [](const Filled& a, const Filled& b) { return a.column->leaves < b.column->leaves; });
    if (first->column->leaves == 0) return;
    columns->erase(first);
  }
}

}  // namespace

std::vector<Line> TableFrame(const std::vector<const RunView*>& views, const FrameOptions& options) {
  const std::vector<std::string> names = NamesOf(views);
  std::vector<Filled> columns = Fill(views, names, options.now_unix_s);
  LeaveOut(&columns, options.columns);
  const std::size_t width = WidthOf(columns);
  const std::size_t left = options.columns > width ? std::min(kMostCurveColumns, options.columns - width) : 0;
  const std::size_t curve = left < kLeastCurveColumns ? 0 : left;
  std::vector<Line> lines(views.size() + 1);
  for (const Filled& column : columns) {
    const std::string between(&column == columns.data() ? 0 : kBetween, ' ');
    lines[0].push_back({between + Fitted(column.column->name, column.width), Style::kDim});
    for (std::size_t run = 0; run < views.size(); ++run)
      lines[run + 1].push_back({between + column.cells[run].text, column.cells[run].style});
  }
  const std::string between(kBetween, ' ');
  if (curve > 0) lines[0].push_back({between + "loss curve", Style::kDim});
  for (std::size_t run = 0; run < views.size() && curve > 0; ++run) {
    lines[run + 1].push_back(
        {between + Sparkline(views[run]->history.Buckets(), metrics::kLoss, curve, options.ascii),
         Style::kCurve});
  }
  for (std::size_t run = 0; run < views.size(); ++run) {
    for (const Line& warning : Warnings(*views[run])) {
      Line& line = lines.emplace_back();
      line.push_back({names[run] + ": ", Style::kBold});
      line.insert(line.end(), warning.begin(), warning.end());
    }
  }
  if (options.rows > 0 && lines.size() > options.rows) lines.resize(options.rows);
  return lines;
}

}  // namespace engine::view
