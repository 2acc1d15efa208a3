#include "engine/train/report.h"

#include <fmt/chrono.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <utility>

#include "engine/base/print.h"
#include "engine/base/units.h"
#include "engine/driver/run_folder.h"
#include "engine/metrics/jsonl.h"
#include "engine/train/records.h"

namespace engine::train {
namespace {

// Who sets the pace of all: every rank waits for that one.
std::string Slowest(const IterationReport& report) {
  if (report.rank_busy_ms.empty()) return "";
  const auto slowest = std::max_element(report.rank_busy_ms.begin(), report.rank_busy_ms.end());
  return fmt::format(" slowest rank: {} ({:.1f} ms of {:.1f}) |", slowest - report.rank_busy_ms.begin(),
                     *slowest, report.elapsed_ms);
}

// e to the loss: a loss above 709 has none that a double holds.
std::string Perplexity(double loss) {
  const double perplexity = std::exp(loss);
  if (!std::isinf(perplexity)) return fmt::format("{:.6E}", perplexity);
  return fmt::format(">{:.6E}", std::numeric_limits<double>::max());
}

}  // namespace

bool IsLogged(std::int64_t iteration, std::int64_t iterations, std::int64_t interval) {
  return iteration == 1 || iteration == iterations || iteration % interval == 0;
}

Reporter::Reporter(std::int64_t log_interval, const RunFacts& facts)
    : sinks_([this](const std::string& text) { Warn(text); }),
      log_interval_(log_interval),
      facts_(facts),
      // This session's own: mpirun gives its ranks one each whose text it passes on, perhaps to a file.
      terminal_(tcgetpgrp(STDOUT_FILENO) >= 0) {}

absl::StatusOr<std::unique_ptr<Reporter>> Reporter::Open(const std::string& folder, std::int64_t iteration,
                                                         std::int64_t log_interval, const RunFacts& facts) {
  std::unique_ptr<Reporter> reporter(new Reporter(log_interval, facts));
  ASSIGN_OR_RETURN(
      std::unique_ptr<metrics::Sink> jsonl,
      metrics::Jsonl::Open((std::filesystem::path(folder) / driver::kMetricsName).string(), iteration));
  reporter->iteration_ = iteration;
  reporter->Add(std::move(jsonl), 1);
  return reporter;
}

Reporter::~Reporter() { ClearProgress(); }

void Reporter::Add(std::unique_ptr<metrics::Sink> sink, std::int64_t interval) {
  sinks_.Add(std::move(sink), interval);
}

void Reporter::Close(bool succeeded) { sinks_.Close(succeeded); }

void Reporter::Line(const std::string& text) {
  ClearProgress();
  Print(stdout, "{}\n", text);
  std::fflush(stdout);
}

void Reporter::Note(const std::string& text) {
  ClearProgress();
  Print(stderr, "note: {}\n", text);
}

void Reporter::Warn(const std::string& text) {
  ClearProgress();
  Print(stderr, "warning: {}\n", text);
}

void Reporter::Iteration(const IterationReport& report) {
  iteration_ = report.iteration;
  consumed_samples_ = report.consumed_samples;
  sinks_.Write(RecordOf(report, facts_));
  ++interval_.iterations;
  interval_.elapsed_ms += report.elapsed_ms;
  interval_.batches += static_cast<double>(report.global_batch) / static_cast<double>(facts_.global_batch);
  interval_.skipped += report.skipped ? 1 : 0;
  interval_.nan += report.nan ? 1 : 0;
  if (!report.skipped && !report.nan) {
    ++interval_.steps;
    interval_.loss += report.loss;
  }
  const bool ends_the_run = report.nan && !report.harmless;
  if (ends_the_run || IsLogged(report.iteration, report.iterations, log_interval_)) Log(report);
  if (!report.nan && report.iteration != report.iterations) Progress(report);
}

// Means, sums and last values are those of Megatron-LM's line, but for the learning rate, which there is the
// next iteration's, and for what stands behind the number of NaN iterations.
void Reporter::Log(const IterationReport& report) {
  const Interval interval = std::exchange(interval_, {});
  const double mean_s = interval.elapsed_ms / 1e3 / static_cast<double>(interval.iterations);
  const double batch_s = interval.elapsed_ms / 1e3 / interval.batches;
  const double tflops = facts_.model_flops / batch_s / static_cast<double>(facts_.devices) / 1e12;
  std::string line = fmt::format(
      "[{:%Y-%m-%d %H:%M:%S}] iteration {:8d}/{:8d} | consumed samples: {:12d} | "
      "elapsed time per iteration (ms): {:.1f} |",
      fmt::localtime(report.ended), report.iteration, report.iterations, report.consumed_samples,
      mean_s * 1e3);
  if (facts_.gpus) line += fmt::format(" throughput per GPU (TFLOP/s/GPU): {:.1f} |", tflops);
  line += fmt::format(" learning rate: {:.6E} | global batch size: {:5d} |", report.learning_rate,
                      report.global_batch);
  if (interval.steps > 0)
    line += fmt::format(" lm loss: {:.6E} |", interval.loss / static_cast<double>(interval.steps));
  line += fmt::format(" loss scale: {:.1f} |", report.loss_scale);
  if (!report.skipped && !report.nan) line += fmt::format(" grad norm: {:.3f} |", report.grad_norm);
  line += fmt::format(
      " number of skipped iterations: {:3d} | number of nan iterations: {:3d} | tokens/s: {:.0f} | memory: "
      "{} |{}",
      interval.skipped, interval.nan, static_cast<double>(facts_.tokens) / batch_s,
      FormatBytes(facts_.arenas_bytes), Slowest(report));
  Line(line);
}

void Reporter::Evaluation(const EvaluationReport& report) {
  sinks_.Write(RecordOf(report, consumed_samples_));
  const std::string perplexity =
      report.token_loss ? fmt::format("lm loss PPL: {} | ", Perplexity(*report.token_loss)) : "";
  const std::string text = fmt::format(" validation loss at iteration {} | lm loss value: {:.6E} | {}",
                                       report.iteration, report.validation_loss, perplexity);
  const std::string rule(text.size() + 1, '-');
  Line(rule);
  Line(text);
  for (const evaluate::TaskResult& task : report.tasks) Line(evaluate::LineOf(task));
  Line(rule);
}

void Reporter::Saved(const SaveReport& report) {
  sinks_.Write(RecordOf(report, iteration_, consumed_samples_));
}

void Reporter::NotSaved(const NotSavedReport& report) {
  sinks_.Write(RecordOf(report, iteration_, consumed_samples_));
}

void Reporter::Histograms(const HistogramReport& report) { sinks_.Write(RecordOf(report)); }

void Reporter::LeftOut(const LeftOutReport& report) {
  iteration_ = report.iteration;
  consumed_samples_ = report.consumed_samples;
  sinks_.Write(RecordOf(report));
}

void Reporter::WentBack(const RewindReport& report) { sinks_.Write(RecordOf(report)); }

void Reporter::Progress(const IterationReport& report) {
  if (!terminal_) return;
  constexpr int kWidth = 40;
  const double done = static_cast<double>(report.iteration) / static_cast<double>(report.iterations);
  const int filled = static_cast<int>(done * kWidth);
  const double sample_s = report.elapsed_ms / 1e3 / static_cast<double>(report.global_batch);
  const double left_s = sample_s * static_cast<double>(facts_.samples - report.consumed_samples);
  Print(stdout, "\r[{}{}] {:3.0f}% {}/{} loss {:.4f} {:.0f} tokens/s, {:.0f} s left \x1b[K",
        std::string(filled, '#'), std::string(kWidth - filled, '.'), 100 * done, report.iteration,
        report.iterations, report.loss,
        static_cast<double>(facts_.tokens) / static_cast<double>(facts_.global_batch) / sample_s, left_s);
  std::fflush(stdout);
  bar_shown_ = true;
}

void Reporter::ClearProgress() {
  if (!bar_shown_) return;
  Print(stdout, "\r\x1b[K");
  std::fflush(stdout);
  bar_shown_ = false;
}

}  // namespace engine::train
