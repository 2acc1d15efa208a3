#include "engine/train/report.h"

#include <fmt/chrono.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/print.h"
#include "engine/base/units.h"
#include "engine/driver/run_folder.h"

namespace engine::train {
namespace {

// Who sets the pace of all: every rank waits for that one.
std::string Slowest(const IterationReport& report) {
  if (report.rank_busy_ms.empty()) return "";
  const auto slowest = std::max_element(report.rank_busy_ms.begin(), report.rank_busy_ms.end());
  return fmt::format(" slowest rank: {} ({:.1f} ms of {:.1f}) |", slowest - report.rank_busy_ms.begin(),
                     *slowest, report.elapsed_ms);
}

// An object's iteration; nullopt where the line is none that this program wrote.
std::optional<std::int64_t> IterationOf(const std::string& line) {
  const absl::StatusOr<nlohmann::json> json = ParseJson(line, driver::kMetricsName);
  if (!json.ok() || !json->is_object() || !json->contains("iteration") ||
      !(*json)["iteration"].is_number_integer()) {
    return std::nullopt;
  }
  return (*json)["iteration"].get<std::int64_t>();
}

// Cuts the file off behind the last line that is whole and of `iteration` or before. Lines are in order, so
// that what is kept is the file's beginning and stays where it is: a run that is killed here loses nothing.
absl::Status Truncate(const std::string& path, std::int64_t iteration) {
  RETURN_IF_ERROR(CheckRegularOrAbsent(path));
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::OkStatus();
  std::int64_t read = 0;
  std::int64_t kept = 0;
  bool ended = true;  // the last line that is kept, by a line's end
  for (std::string line; std::getline(in, line);) {
    const bool whole = !in.eof();
    read += static_cast<std::int64_t>(line.size()) + (whole ? 1 : 0);
    const std::optional<std::int64_t> of_line = IterationOf(line);
    if (!of_line) continue;
    if (*of_line > iteration) break;
    kept = read;
    ended = whole;
  }
  std::error_code error;
  if (std::filesystem::file_size(path, error) != static_cast<std::uintmax_t>(kept) && !error) {
    std::filesystem::resize_file(path, static_cast<std::uintmax_t>(kept), error);
  }
  if (error) return Unavailable("{}: cannot cut off what will run again: {}", path, error.message());
  if (ended) return absl::OkStatus();
  std::ofstream out(path, std::ios::binary | std::ios::app);
  if (!(out << '\n').flush()) return Unavailable("{}: cannot write", path);
  return absl::OkStatus();
}

// A time that pandas and JavaScript read: "2026-11-23T18:30:05.250Z".
std::string Timestamp() {
  const auto now = std::chrono::system_clock::now();
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count();
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03d}Z",
                     fmt::gmtime(static_cast<std::time_t>(milliseconds / 1000)), milliseconds % 1000);
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

absl::StatusOr<Reporter> Reporter::Open(const std::string& folder, std::int64_t iteration,
                                        std::int64_t log_interval, const RunFacts& facts) {
  Reporter reporter;
  reporter.path_ = (std::filesystem::path(folder) / driver::kMetricsName).string();
  RETURN_IF_ERROR(Truncate(reporter.path_, iteration));
  reporter.metrics_ = std::fopen(reporter.path_.c_str(), "ae");
  if (reporter.metrics_ == nullptr)
    return Unavailable("{}: cannot open: {}", reporter.path_, std::strerror(errno));
  reporter.log_interval_ = log_interval;
  reporter.facts_ = facts;
  // This session's own: mpirun gives its ranks one each whose text it passes on, perhaps to a file.
  reporter.terminal_ = tcgetpgrp(STDOUT_FILENO) >= 0;
  return reporter;
}

Reporter::Reporter(Reporter&& other) noexcept
    : metrics_(std::exchange(other.metrics_, nullptr)),
      path_(std::move(other.path_)),
      log_interval_(other.log_interval_),
      facts_(other.facts_),
      interval_(other.interval_),
      terminal_(other.terminal_),
      bar_shown_(other.bar_shown_) {}

Reporter::~Reporter() {
  ClearProgress();
  if (metrics_ != nullptr) std::fclose(metrics_);
}

absl::Status Reporter::Append(const nlohmann::ordered_json& json) {
  if (std::fputs((json.dump() + "\n").c_str(), metrics_) < 0 || std::fflush(metrics_) != 0) {
    return Unavailable("{}: cannot write: {}", path_, std::strerror(errno));
  }
  return absl::OkStatus();
}

void Reporter::Line(const std::string& text) {
  ClearProgress();
  Print(stdout, "{}\n", text);
  std::fflush(stdout);
}

void Reporter::Note(const std::string& text) {
  ClearProgress();
  Print(stderr, "note: {}\n", text);
}

absl::Status Reporter::Iteration(const IterationReport& report) {
  const double seconds = report.elapsed_ms / 1e3;
  const double batches = static_cast<double>(report.global_batch) / static_cast<double>(facts_.global_batch);
  const double flops = batches * facts_.model_flops / seconds / static_cast<double>(facts_.devices);
  // A number that is not finite becomes null: JSON has none.
  nlohmann::ordered_json json = {
      {"iteration", report.iteration},
      {"loss", report.loss},
      {"grad_norm", report.grad_norm},
      {"learning_rate", report.learning_rate},
      {"loss_scale", report.loss_scale},
      {"global_batch", report.global_batch},
      {"consumed_samples", report.consumed_samples},
      {"skipped_iterations", report.skipped_iterations},
      {"nan_iterations", report.nan ? 1 : 0},
      {"elapsed_ms", report.elapsed_ms},
      {"data_wait_ms", report.data_wait_ms},
      {"timestamp", Timestamp()},
      {"tokens_per_second", batches * static_cast<double>(facts_.tokens) / seconds},
      {"tflops_per_device", flops / 1e12},
      {"mfu", nullptr},
      {"arena_bytes", facts_.arena_bytes},
      {"memory_bytes", nullptr}};
  for (const auto& [name, value] : report.metrics) json["metrics"][name] = value;
  if (facts_.peak_flops > 0) json["mfu"] = flops / facts_.peak_flops;
  if (report.device_bytes) json["memory_bytes"] = *report.device_bytes;
  if (!report.rank_busy_ms.empty()) json["rank_busy_ms"] = report.rank_busy_ms;
  RETURN_IF_ERROR(Append(json));
  ++interval_.iterations;
  interval_.elapsed_ms += report.elapsed_ms;
  interval_.batches += batches;
  interval_.skipped += report.skipped ? 1 : 0;
  interval_.nan += report.nan ? 1 : 0;
  if (!report.skipped && !report.nan) interval_.loss += report.loss;
  if (report.nan || IsLogged(report.iteration, report.iterations, log_interval_)) Log(report);
  if (!report.nan && report.iteration != report.iterations) Progress(report);
  return absl::OkStatus();
}

// Means, sums and last values are those of Megatron-LM's line, but for the learning rate, which there is the
// next iteration's, and for what stands behind the number of NaN iterations.
void Reporter::Log(const IterationReport& report) {
  const Interval interval = std::exchange(interval_, {});
  const std::int64_t steps = interval.iterations - interval.skipped - interval.nan;
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
  if (steps > 0) line += fmt::format(" lm loss: {:.6E} |", interval.loss / static_cast<double>(steps));
  line += fmt::format(" loss scale: {:.1f} |", report.loss_scale);
  if (!report.skipped && !report.nan) line += fmt::format(" grad norm: {:.3f} |", report.grad_norm);
  line += fmt::format(
      " number of skipped iterations: {:3d} | number of nan iterations: {:3d} | tokens/s: {:.0f} | memory: "
      "{} |{}",
      interval.skipped, interval.nan, static_cast<double>(facts_.tokens) / batch_s,
      FormatBytes(facts_.arenas_bytes), Slowest(report));
  Line(line);
}

absl::Status Reporter::Evaluation(const EvaluationReport& report) {
  RETURN_IF_ERROR(Append({{"iteration", report.iteration},
                          {"validation_loss", report.validation_loss},
                          {"elapsed_ms", report.elapsed_ms},
                          {"timestamp", Timestamp()}}));
  const std::string text =
      fmt::format(" validation loss at iteration {} | lm loss value: {:.6E} | lm loss PPL: {} | ",
                  report.iteration, report.validation_loss, Perplexity(report.validation_loss));
  const std::string rule(text.size() + 1, '-');
  Line(rule);
  Line(text);
  Line(rule);
  return absl::OkStatus();
}

absl::Status Reporter::Saved(const SaveReport& report) {
  return Append({{"iteration", report.iteration},
                 {"save_seconds", report.elapsed_ms / 1e3},
                 {"timestamp", Timestamp()}});
}

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
