// What a run tells: log lines for people (fields of Megatron-LM's training log), metrics.jsonl for programs.
#pragma once

#include <cstdint>
#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

#include "engine/base/status.h"

namespace engine::train {

struct IterationReport {
  std::int64_t iteration = 0;  // from 1
  std::int64_t iterations = 0;
  std::int64_t consumed_samples = 0;
  std::int64_t global_batch = 0;
  double loss = 0;           // nats per token, mean over the global batch
  double grad_norm = 0;      // before clipping
  double learning_rate = 0;  // that this iteration's update used
  double elapsed_ms = 0;
  double tokens_per_second = 0;
  std::int64_t skipped = 0;  // iterations whose gradients overflowed, so far
  double loss_scale = 1;
  // By rank, in a run of several, of iterations that are logged: executor::IterationResult::busy_ms.
  std::vector<double> rank_busy_ms = {};
  std::time_t ended = std::time(nullptr);
};

// Whether the log has a line of the iteration, from 1: of the first, the last, and each `interval`-th.
bool IsLogged(std::int64_t iteration, std::int64_t iterations, std::int64_t interval);

struct EvaluationReport {
  std::int64_t iteration = 0;
  double validation_loss = 0;  // nats per token
  double elapsed_ms = 0;
};

class Reporter {
 public:
  // memory_bytes: of all ranks' arenas. Appends to DIR/metrics.jsonl. Of a run that is resumed after
  // `iteration`, later lines are cut off first: those iterations will run again.
  static absl::StatusOr<Reporter> Open(const std::string& folder, std::int64_t iteration,
                                       std::int64_t log_interval, std::int64_t memory_bytes);
  Reporter(Reporter&& other) noexcept;
  Reporter& operator=(Reporter&&) = delete;
  ~Reporter();

  absl::Status Iteration(const IterationReport& report);
  absl::Status Evaluation(const EvaluationReport& report);
  // A line between the others, without spoiling the progress bar.
  void Line(const std::string& text);

 private:
  Reporter() = default;
  absl::Status Append(const std::string& json);
  void Progress(const IterationReport& report);
  void ClearProgress();

  std::FILE* metrics_ = nullptr;
  std::string path_;
  std::int64_t log_interval_ = 1;
  std::int64_t memory_bytes_ = 0;
  bool terminal_ = false;
  bool bar_shown_ = false;
};

}  // namespace engine::train
