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
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "engine/base/units.h"

namespace engine::train {
namespace {

constexpr const char* kMetricsName = "metrics.jsonl";

// Who sets the pace of all: every rank waits for that one.
std::string Slowest(const IterationReport& report) {
  if (report.rank_busy_ms.empty()) return "";
  const auto slowest = std::max_element(report.rank_busy_ms.begin(), report.rank_busy_ms.end());
  return fmt::format(" slowest rank: {} ({:.1f} ms of {:.1f}) |", slowest - report.rank_busy_ms.begin(),
                     *slowest, report.elapsed_ms);
}

// Keeps the lines up to `iteration`, through a temporary file.
absl::Status Truncate(const std::string& path, std::int64_t iteration) {
  std::ifstream in(path);
  if (!in) return absl::OkStatus();
  const std::string temporary = path + ".new";
  {
    std::ofstream out(temporary);
    std::string line;
    while (std::getline(in, line)) {
      const nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!json.is_object() || !json.contains("iteration") || !json["iteration"].is_number_integer())
        continue;
      if (json["iteration"].get<std::int64_t>() <= iteration) out << line << '\n';
    }
    if (!out.flush()) return Unavailable("{}: cannot write", temporary);
  }
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error) return Unavailable("{}: cannot rename to {}: {}", temporary, path, error.message());
  return absl::OkStatus();
}

}  // namespace

bool IsLogged(std::int64_t iteration, std::int64_t iterations, std::int64_t interval) {
  return iteration == 1 || iteration == iterations || iteration % interval == 0;
}

absl::StatusOr<Reporter> Reporter::Open(const std::string& folder, std::int64_t iteration,
                                        std::int64_t log_interval, std::int64_t memory_bytes) {
  Reporter reporter;
  reporter.path_ = (std::filesystem::path(folder) / kMetricsName).string();
  RETURN_IF_ERROR(Truncate(reporter.path_, iteration));
  reporter.metrics_ = std::fopen(reporter.path_.c_str(), "ae");
  if (reporter.metrics_ == nullptr)
    return Unavailable("{}: cannot open: {}", reporter.path_, std::strerror(errno));
  reporter.log_interval_ = log_interval;
  reporter.memory_bytes_ = memory_bytes;
  // This session's own: mpirun gives its ranks one each whose text it passes on, perhaps to a file.
  reporter.terminal_ = tcgetpgrp(STDOUT_FILENO) >= 0;
  return reporter;
}

Reporter::Reporter(Reporter&& other) noexcept
    : metrics_(std::exchange(other.metrics_, nullptr)),
      path_(std::move(other.path_)),
      log_interval_(other.log_interval_),
      memory_bytes_(other.memory_bytes_),
      terminal_(other.terminal_),
      bar_shown_(other.bar_shown_) {}

Reporter::~Reporter() {
  ClearProgress();
  if (metrics_ != nullptr) std::fclose(metrics_);
}

absl::Status Reporter::Append(const std::string& json) {
  if (std::fputs((json + "\n").c_str(), metrics_) < 0 || std::fflush(metrics_) != 0) {
    return Unavailable("{}: cannot write: {}", path_, std::strerror(errno));
  }
  return absl::OkStatus();
}

void Reporter::Line(const std::string& text) {
  ClearProgress();
  fmt::print("{}\n", text);
  std::fflush(stdout);
}

absl::Status Reporter::Iteration(const IterationReport& report) {
  nlohmann::ordered_json json = {{"iteration", report.iteration},
                                 {"loss", report.loss},
                                 {"grad_norm", report.grad_norm},
                                 {"learning_rate", report.learning_rate},
                                 {"consumed_samples", report.consumed_samples},
                                 {"elapsed_ms", report.elapsed_ms},
                                 {"tokens_per_second", report.tokens_per_second}};
  if (report.loss_scale != 1 || report.skipped > 0) {
    json["loss_scale"] = report.loss_scale;
    json["skipped"] = report.skipped;
  }
  if (!report.rank_busy_ms.empty()) json["rank_busy_ms"] = report.rank_busy_ms;
  RETURN_IF_ERROR(Append(json.dump()));
  if (IsLogged(report.iteration, report.iterations, log_interval_)) {
    Line(fmt::format(
        "[{:%Y-%m-%d %H:%M:%S}] iteration {:8d}/{:8d} | consumed samples: {:12d} | elapsed time per "
        "iteration (ms): {:.1f} | "
        "learning rate: {:.6E} | global batch size: {:5d} | lm loss: {:.6E} | grad norm: {:.3f} | "
        "number of skipped iterations: {:3d} | number of nan iterations: {:3d} | tokens/s: {:.0f} | memory: "
        "{} |{}",
        fmt::localtime(report.ended), report.iteration, report.iterations, report.consumed_samples,
        report.elapsed_ms, report.learning_rate, report.global_batch, report.loss, report.grad_norm,
        report.skipped, 0, report.tokens_per_second, FormatBytes(memory_bytes_), Slowest(report)));
  }
  if (report.iteration != report.iterations) Progress(report);
  return absl::OkStatus();
}

absl::Status Reporter::Evaluation(const EvaluationReport& report) {
  const nlohmann::ordered_json json = {{"iteration", report.iteration},
                                       {"validation_loss", report.validation_loss},
                                       {"elapsed_ms", report.elapsed_ms}};
  RETURN_IF_ERROR(Append(json.dump()));
  constexpr double kLargestExponent = 20.0;
  const std::string text = fmt::format(
      " validation loss at iteration {} | lm loss value: {:.6E} | lm loss PPL: {:.6E} | ", report.iteration,
      report.validation_loss, std::exp(std::min(kLargestExponent, report.validation_loss)));
  const std::string rule(text.size() + 1, '-');
  Line(rule);
  Line(text);
  Line(rule);
  return absl::OkStatus();
}

void Reporter::Progress(const IterationReport& report) {
  if (!terminal_) return;
  constexpr int kWidth = 40;
  const double done = static_cast<double>(report.iteration) / static_cast<double>(report.iterations);
  const int filled = static_cast<int>(done * kWidth);
  const double left_s = report.elapsed_ms / 1e3 * static_cast<double>(report.iterations - report.iteration);
  fmt::print("\r[{}{}] {:3.0f}% {}/{} loss {:.4f} {:.0f} tokens/s, {:.0f} s left \x1b[K",
             std::string(filled, '#'), std::string(kWidth - filled, '.'), 100 * done, report.iteration,
             report.iterations, report.loss, report.tokens_per_second, left_s);
  std::fflush(stdout);
  bar_shown_ = true;
}

void Reporter::ClearProgress() {
  if (!bar_shown_) return;
  fmt::print("\r\x1b[K");
  std::fflush(stdout);
  bar_shown_ = false;
}

}  // namespace engine::train
