// What a run tells: log lines for people (fields of Megatron-LM's training log, with its meanings),
// metrics.jsonl for programs (docs/metrics.md has every key of both), notes on standard error.
#pragma once

#include <cstdint>
#include <cstdio>
#include <ctime>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/status.h"

namespace engine::train {

// What the rates of a run follow from.
struct RunFacts {
  std::int64_t arenas_bytes = 0;  // of all ranks together
  std::int64_t arena_bytes = 0;   // of the fullest rank
  // Of an iteration of the whole global batch; those of a smaller one have less of both in proportion.
  std::int64_t global_batch = 1;
  std::int64_t tokens = 0;
  std::int64_t samples = 0;  // of the whole training
  std::int64_t devices = 1;  // ranks
  double model_flops = 0;    // of such an iteration on all of them: plan::Prediction
  double peak_flops = 0;     // of one, per second, of dense 16-bit products; 0: not known
  bool gpus = false;
};

struct IterationReport {
  std::int64_t iteration = 0;  // from 1
  std::int64_t iterations = 0;
  std::int64_t consumed_samples = 0;
  std::int64_t global_batch = 0;  // samples of this iteration
  double loss = 0;  // nats per token, mean over the global batch; of several, plan::Plan::Objective
  std::vector<std::pair<std::string, double>> metrics = {};  // by name, of a model with more than one
  double grad_norm = 0;                                      // before clipping
  double learning_rate = 0;                                  // that this iteration's update used
  double elapsed_ms = 0;
  double data_wait_ms = 0;              // of this process's rank that waited longest for its inputs
  bool skipped = false;                 // its gradients overflowed: no update
  bool nan = false;                     // its loss or gradient norm is not finite, which ends the run
  std::int64_t skipped_iterations = 0;  // so far
  double loss_scale = 1;
  std::optional<std::int64_t> device_bytes = {};  // in use on rank 0's device, by all that run there
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

struct SaveReport {
  std::int64_t iteration = 0;
  double elapsed_ms = 0;
};

class Reporter {
 public:
  // Appends to DIR/metrics.jsonl. Of a run that is resumed after `iteration`, later lines are cut off first,
  // as those iterations will run again, and so is what a killed run wrote by half. The file stays the same
  // one, so that a program that follows it goes on.
  static absl::StatusOr<Reporter> Open(const std::string& folder, std::int64_t iteration,
                                       std::int64_t log_interval, const RunFacts& facts);
  Reporter(Reporter&& other) noexcept;
  Reporter& operator=(Reporter&&) = delete;
  ~Reporter();

  absl::Status Iteration(const IterationReport& report);
  absl::Status Evaluation(const EvaluationReport& report);
  absl::Status Saved(const SaveReport& report);
  // A line between the others, without spoiling the progress bar.
  void Line(const std::string& text);
  // The same on standard error, "note: " before it.
  void Note(const std::string& text);

 private:
  // Iterations since the last line of the log.
  struct Interval {
    std::int64_t iterations = 0;
    std::int64_t skipped = 0;
    std::int64_t nan = 0;
    double elapsed_ms = 0;
    double batches = 0;  // whole global batches that their samples are
    double loss = 0;     // sum over those that are neither
  };

  Reporter() = default;
  absl::Status Append(const nlohmann::ordered_json& json);
  void Log(const IterationReport& report);
  void Progress(const IterationReport& report);
  void ClearProgress();

  std::FILE* metrics_ = nullptr;
  std::string path_;
  std::int64_t log_interval_ = 1;
  RunFacts facts_;
  Interval interval_;
  bool terminal_ = false;
  bool bar_shown_ = false;
};

}  // namespace engine::train
