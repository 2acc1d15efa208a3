#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/base/units.h"
#include "engine/view/frame.h"
#include "engine/view/glyphs.h"
#include "engine/view/status_text.h"
#include "engine/view/words.h"

namespace engine::view {
namespace {

using predict::Section;
using State = RunView::State;

constexpr std::size_t kLabelColumns = 15;
constexpr std::size_t kValueColumns = 44;
constexpr std::size_t kMostPlotRows = 16, kLeastPlotRows = 3, kPlainPlotRows = 8;

// Puts a frame together line by line.
class Frame {
 public:
  Frame(const RunView& view, const FrameOptions& options)
      : view_(view), options_(options), buckets_(view.history.Buckets()) {}

  std::vector<Line> Lines() {
    std::vector<Line> head = Head();
    std::vector<Line> rows = Rows();
    std::vector<Line> warnings = Warnings(view_);
    std::vector<Line> lines = std::move(head);
    lines.insert(lines.end(), warnings.begin(), warnings.end());
    const std::size_t taken = lines.size() + rows.size() + 1;  // the plot has an axis
    const std::vector<Line> plot = LossPlot(PlotRows(taken));
    lines.insert(lines.end(), plot.begin(), plot.end());
    lines.insert(lines.end(), rows.begin(), rows.end());
    if (options_.rows > 0 && lines.size() > options_.rows) lines.resize(options_.rows);
    return lines;
  }

 private:
  std::size_t PlotRows(std::size_t taken) const {
    if (options_.rows == 0) return kPlainPlotRows;
    if (options_.rows < taken + kLeastPlotRows) return 0;
    return std::min(options_.rows - taken, kMostPlotRows);
  }

  std::vector<Line> Head() const {
    const std::optional<std::int64_t> iterations = view_.Iterations();
    Line title = {{Printable(view_.name), Style::kBold}, {"  "}, StateSpan(view_, options_.now_unix_s)};
    std::string where = fmt::format("  iteration {}", view_.last.iteration);
    double share = 0;
    if (iterations && *iterations > 0) {
      share = static_cast<double>(view_.last.iteration) / static_cast<double>(*iterations);
      where += fmt::format(" of {}, {:.0f} %", *iterations, std::floor(std::min(share, 1.0) * 100));
    }
    title.push_back({where + End()});
    std::vector<Line> head = {title};
    if (iterations) head.push_back({{ProgressBar(share, options_.columns, options_.ascii), Style::kCurve}});
    if (view_.share_read < 1)
      head.push_back(
          {{fmt::format("reading metrics.jsonl: {}", Percent(view_.share_read)), Style::kWarning}});
    head.push_back({{What(), Style::kDim}});
    return head;
  }

  // When it ended, or will.
  std::string End() const {
    if (view_.outcome)
      return view_.outcome->ended.empty() ? "" : ", ended " + Printable(view_.outcome->ended);
    const std::optional<RunView::TimeLeft> left = view_.Left();
    if (!left || view_.StateAt(options_.now_unix_s) != State::kRunning) return "";
    const std::string mean = Duration(left->seconds), least = Duration(left->least),
                      most = Duration(left->most);
    const std::string range = least == most ? "" : fmt::format(" ({} to {})", least, most);
    return fmt::format(", {} left{}, until {}", mean, range,
                       ClockText(options_.now_unix_s + left->seconds, options_.now_unix_s));
  }

  std::string What() const {
    std::vector<std::string> parts;
    if (view_.plan) {
      parts = {view_.plan->layout, Printable(view_.plan->compute)};
      if (const auto parameters = view_.plan->Fact(Section::kWork, "parameters"))
        parts.push_back(FormatCount(*parameters) + " parameters");
      parts.push_back("plan " + Printable(view_.plan->side.hash.substr(0, 8)));
    }
    if (view_.outcome && !view_.outcome->host.empty())
      parts.push_back("on " + Printable(view_.outcome->host));
    if (!view_.recipe_path.empty()) parts.push_back(Printable(view_.recipe_path));
    return fmt::format("{}", fmt::join(parts, " · "));
  }

  std::vector<Line> LossPlot(std::size_t rows) const {
    constexpr std::size_t kAxisColumns = 10;
    if (rows == 0 || options_.columns < 2 * kAxisColumns) return {};
    const std::size_t columns = options_.columns - kAxisColumns;
    const Plot plot = PlotOf(buckets_, metrics::kLoss, columns, rows, options_.ascii);
    std::vector<Line> lines;
    for (std::size_t row = 0; row < plot.rows.size(); ++row) {
      const std::string label = row == 0                      ? LossText(plot.top)
                                : row + 1 == plot.rows.size() ? LossText(plot.bottom)
                                                              : "";
      lines.push_back(
          {{fmt::format("{:>8} ", label), Style::kDim}, {"│", Style::kDim}, {plot.rows[row], Style::kCurve}});
    }
    if (plot.rows.empty()) return lines;
    const std::string last = fmt::format("{}", plot.last);
    lines.push_back(
        {{fmt::format("    loss  {:<{}}{}", plot.first, columns - std::min(columns, last.size()), last),
          Style::kDim}});
    return lines;
  }

  Line Row(const char* label, const std::string& value, Style style = Style::kPlain) const {
    return {{Fitted(label, kLabelColumns), Style::kDim}, {value, style}};
  }

  // With a curve of its means behind.
  Line CurveRow(const char* label, const std::string& value, const metrics::Quantity& quantity) const {
    Line line = Row(label, value);
    const std::size_t before = kLabelColumns + std::max(kValueColumns, ColumnsOf(value) + 1);
    if (options_.columns <= before) return line;
    line[1].text = Fitted(value, before - kLabelColumns);
    line.push_back({Sparkline(buckets_, quantity, options_.columns - before, options_.ascii), Style::kCurve});
    return line;
  }

  // ", 5 predicted"
  std::string Predicted(const char* fact, std::string (*text)(double), double factor = 1) const {
    if (!view_.plan) return "";
    const std::optional<double> value = view_.plan->Fact(Section::kPrediction, fact);
    return value ? fmt::format(", {} predicted", text(*value * factor)) : "";
  }

  std::vector<Line> Rows() const {
    std::vector<Line> rows;
    if (view_.last.iteration > 0) AddCurves(&rows);
    AddMemory(&rows);
    if (view_.evaluations > 0) rows.push_back(Row("validation", Evaluation()));
    if (!view_.evaluation_records.empty()) AddTasks(view_.evaluation_records.back(), &rows);
    const std::string checkpoint = Checkpoint();
    if (!checkpoint.empty()) rows.push_back(Row("checkpoint", checkpoint));
    if (view_.returns > 0) rows.push_back(Row("went back", Rewinds(), Style::kWarning));
    if (view_.time.wall_s() > 0) rows.push_back(Row("goodput", Goodput()));
    AddRanks(&rows);
    AddGpus(&rows);
    return rows;
  }

  void AddCurves(std::vector<Line>* rows) const {
    const LastIteration& last = view_.last;
    rows->push_back(CurveRow("loss", LossText(last[metrics::kLoss]), metrics::kLoss));
    rows->push_back(CurveRow("gradient norm", Significant(last[metrics::kGradNorm]), metrics::kGradNorm));
    rows->push_back(
        CurveRow("learning rate", Significant(last[metrics::kLearningRate]), metrics::kLearningRate));
    rows->push_back(CurveRow("iteration", Pace(), metrics::kElapsed));
    rows->push_back(CurveRow(
        "tokens/s", RateText(last[metrics::kTokensPerSecond]) + Predicted("tokens per second", RateText),
        metrics::kTokensPerSecond));
    if (std::isfinite(last[metrics::kMfu]))
      rows->push_back(
          CurveRow("MFU", Percent(last[metrics::kMfu]) + Predicted("MFU", Percent), metrics::kMfu));
    if (std::isfinite(last[metrics::kDataWait]))
      rows->push_back(CurveRow("data wait", Milliseconds(last[metrics::kDataWait]), metrics::kDataWait));
    if (last.skipped > 0) {
      rows->push_back(CurveRow(
          "loss scale",
          fmt::format("{}, {} iterations skipped", Significant(last[metrics::kLossScale]), last.skipped),
          metrics::kLossScale));
    }
  }

  std::string Pace() const {
    constexpr double kMiddle = 0.5, kHigh = 0.95;
    const std::string median = fmt::format("{}, median {}", Milliseconds(view_.last[metrics::kElapsed]),
                                           Milliseconds(view_.iteration_ms.Quantile(kMiddle)));
    const std::string predicted = Predicted("iteration", Milliseconds, 1e3);
    if (!predicted.empty()) return median + predicted;
    return fmt::format("{}, 95 % in {}", median, Milliseconds(view_.iteration_ms.Quantile(kHigh)));
  }

  void AddMemory(std::vector<Line>* rows) const {
    std::string text;
    if (view_.plan) {
      if (const auto planned = view_.plan->Fact(Section::kMemory, "fullest stage, total"))
        text = FormatBytes(static_cast<std::int64_t>(*planned)) + " planned for the fullest rank";
    }
    if (const double used = view_.last[metrics::kMemoryBytes]; std::isfinite(used))
      text += fmt::format("{}{} in use on rank 0's GPU", text.empty() ? "" : ", ",
                          FormatBytes(static_cast<std::int64_t>(used)));
    if (!text.empty()) rows->push_back(Row("memory", text));
  }

  std::string Evaluation() const {
    if (!view_.last_evaluation) return "";
    const double loss = view_.last_evaluation->loss;
    std::string text = fmt::format("{} at iteration {}", std::isfinite(loss) ? LossText(loss) : "not finite",
                                   view_.last_evaluation->iteration);
    if (view_.best_evaluation && view_.best_evaluation->iteration != view_.last_evaluation->iteration)
      text += fmt::format(", lowest {} at {}", LossText(view_.best_evaluation->loss),
                          view_.best_evaluation->iteration);
    return text;
  }

  std::string Rewinds() const {
    const RewoundView& last = view_.rewound_records.back();
    return fmt::format("{} time{}; the last from iteration {} to {}", view_.returns,
                       view_.returns == 1 ? "" : "s", last.bad_iteration, last.iteration);
  }

  // A row for each measure of a task in the last evaluation.
  void AddTasks(const EvaluationView& evaluation, std::vector<Line>* rows) const {
    for (const TaskView& task : evaluation.tasks)
      rows->push_back(Row(
          "task", fmt::format("{} {}", Printable(task.name), WithError(task.value, task.standard_error))));
  }

  std::string Checkpoint() const {
    std::string text;
    if (const std::optional<CheckpointView> newest = NewestCheckpoint(view_)) {
      text = fmt::format("iteration {}", newest->iteration);
      const State state = view_.StateAt(options_.now_unix_s);
      const bool goes_on = state == State::kRunning || state == State::kSilent;
      if (newest->ended_unix_s > 0 && goes_on)
        text += fmt::format(", {} ago", Duration(options_.now_unix_s - newest->ended_unix_s));
      if (newest->save_s > 0) text += fmt::format(", in {}", Duration(newest->save_s));
      text += fmt::format("; {} kept", view_.kept_checkpoints.size());
    }
    if (view_.checkpoint_being_written && !view_.outcome)
      text += fmt::format("{}iteration {} is being written", text.empty() ? "" : "; ",
                          *view_.checkpoint_being_written);
    const std::int64_t whole =
        view_.checkpoint_records.empty() ? 0 : view_.checkpoint_records.back().iteration;
    if (!view_.not_saved_records.empty() && view_.not_saved_records.back().iteration > whole) {
      text += fmt::format("{}that of iteration {} could not be written", text.empty() ? "" : "; ",
                          view_.not_saved_records.back().iteration);
    }
    return text;
  }

  std::string Goodput() const {
    const TimeSplit& time = view_.time;
    const double wall_s = time.wall_s();
    std::vector<std::pair<double, std::string>> lost = {
        {time.evaluation_s(), "evaluation"},
        {time.saving_s(), "saving"},
        {time.data_wait_s(), "data"},
        {time.skipped_s(), "skipped"},
        {time.other_s(), "other"},
        {time.interrupted_s(),
         fmt::format("{} interruption{}", time.interruptions(), time.interruptions() == 1 ? "" : "s")}};
    std::stable_sort(lost.begin(), lost.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    std::string text = fmt::format("{} of {}", Percent(time.goodput()), Duration(wall_s));
    constexpr double kLeastShown = 0.0005;
    for (const auto& [seconds, reason] : lost) {
      if (seconds >= kLeastShown * wall_s) text += fmt::format(", {} {}", reason, Percent(seconds / wall_s));
    }
    return text;
  }

  void AddRanks(std::vector<Line>* rows) const {
    const std::vector<double>& busy = view_.rank_busy_ms;
    const double median = MedianOf(busy);
    if (!(median > 0) || busy.size() < 2) return;
    const auto known = [](double ms) { return std::isfinite(ms); };
    const auto known_ranks = std::count_if(busy.begin(), busy.end(), known);
    const std::size_t slowest = SlowestOf(busy);
    const double times = busy[slowest] / median;
    constexpr double kSlow = 1.3;  // of docs/monitoring.md's alert
    std::string text = known_ranks < 2 ? fmt::format("rank {} busy {}", slowest, Milliseconds(busy[slowest]))
                                       : fmt::format("rank {} busy longest: {}, {:.2f} × median", slowest,
                                                     Milliseconds(busy[slowest]), times);
    const auto unknown = static_cast<std::ptrdiff_t>(busy.size()) - known_ranks;
    const auto first_unknown = std::find_if_not(busy.begin(), busy.end(), known) - busy.begin();
    if (unknown == 1) text += fmt::format("; not known: rank {}", first_unknown);
    if (unknown > 1) text += fmt::format("; not known: rank {} and {} more", first_unknown, unknown - 1);
    text += " ";
    Line row = Row("ranks", text, times > kSlow || unknown > 0 ? Style::kWarning : Style::kPlain);
    const std::size_t before = kLabelColumns + ColumnsOf(text);
    if (options_.columns > before)
      row.push_back({Bars(view_.rank_busy_ms, options_.columns - before, options_.ascii), Style::kCurve});
    rows->push_back(row);
  }

  // Temperatures and clocks of the newest iteration that was logged; of several ranks the outermost, with their ranks.
  void AddGpus(std::vector<Line>* rows) const {
    const auto known = [](std::vector<double> values) {
      std::erase_if(values, [](double value) { return !std::isfinite(value); });
      return values;
    };
    if (known(view_.rank_temperature_c).empty() || known(view_.rank_clock_mhz).empty()) return;
    const auto text = [&](const std::vector<double>& values, const char* unit, bool largest,
                          const char* what) {
      const std::vector<double> finite = known(values);
      const auto [least, most] = std::minmax_element(finite.begin(), finite.end());
      if (values.size() == 1) return fmt::format("{:.0f} {}", *most, unit);
      const auto rank = std::find(values.begin(), values.end(), largest ? *most : *least) - values.begin();
      return fmt::format("{:.0f} to {:.0f} {}, rank {} {}", *least, *most, unit, rank, what);
    };
    rows->push_back(Row("GPUs", text(view_.rank_temperature_c, "°C", true, "hottest") + "; " +
                                    text(view_.rank_clock_mhz, "MHz", false, "slowest")));
  }

  const RunView& view_;
  const FrameOptions& options_;
  const std::vector<Bucket> buckets_;
};

}  // namespace

std::vector<Line> RunFrame(const RunView& view, const FrameOptions& options) {
  return Frame(view, options).Lines();
}

}  // namespace engine::view
