// What a run tells: log lines for people (fields of Megatron-LM's training log, with its meanings), records for the sinks
// of programs (metrics/sink.h; docs/metrics.md has every key of both), notes on standard error.
#pragma once

#include <cstdint>
#include <cstdio>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/histogram.h"
#include "engine/base/status.h"
#include "engine/evaluate/results.h"
#include "engine/metrics/sinks.h"

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
  double data_wait_ms = 0;  // of this process's rank that waited longest for its inputs
  bool skipped = false;     // its gradients overflowed: no update
  bool nan = false;         // its loss is not finite, or the gradient norm of its update
  bool harmless = false;    // its update was left out, as guard.on_nonfinite wants of what is not finite
  std::int64_t skipped_iterations = 0;  // so far
  double loss_scale = 1;
  std::optional<std::int64_t> device_bytes = {};  // in use on rank 0's device, by all that run there
  // By rank, in a run of several, of iterations that are logged: executor::IterationResult::busy_ms.
  std::vector<double> rank_busy_ms = {};
  // Likewise, also in a run of one rank, of the ranks' devices (state::DeviceHealth); NaN where one says nothing, none where all do.
  std::vector<double> rank_clock_mhz = {};
  std::vector<double> rank_temperature_c = {};
  std::time_t ended = std::time(nullptr);
};

// Whether the log has a line of the iteration, from 1: of the first, the last, and each `interval`-th.
bool IsLogged(std::int64_t iteration, std::int64_t iterations, std::int64_t interval);

struct EvaluationReport {
  std::int64_t iteration = 0;
  double validation_loss = 0;  // nats per token; of several, plan::Plan::Objective
  // The plain cross entropy of the next tokens; nothing where only its sum with other terms is known.
  std::optional<double> token_loss = {};
  std::vector<std::pair<std::string, double>> metrics = {};  // as of IterationReport
  double elapsed_ms = 0;
  std::vector<evaluate::TaskResult> tasks = {};
};

struct SaveReport {
  std::int64_t iteration = 0;
  double elapsed_ms = 0;  // until the checkpoint was whole on disk
  double stall_ms = 0;    // for which training stood still for checkpoints, since the report before
};

struct NotSavedReport {
  std::int64_t iteration = 0;  // whose checkpoint could not be written
  std::int64_t failures = 0;   // so far, since the run was started
};

struct LeftOutReport {
  std::int64_t iteration = 0;
  std::int64_t consumed_samples = 0;  // after it
  std::int64_t left_out = 0;          // iterations so far
};

struct RewindReport {
  std::int64_t iteration = 0;         // after which the run goes on
  std::int64_t consumed_samples = 0;  // after it
  std::int64_t bad_iteration = 0;     // for which it goes back
  std::int64_t rewinds = 0;           // so far
};

struct HistogramReport {
  std::int64_t iteration = 0;
  std::int64_t consumed_samples = 0;                               // after it
  std::vector<std::pair<std::string, Histogram>> histograms = {};  // of tensors, by tag
};

class Reporter {
 public:
  // DIR/metrics.jsonl is the first sink (metrics/jsonl.h); the run goes on after `iteration`.
  static absl::StatusOr<std::unique_ptr<Reporter>> Open(const std::string& folder, std::int64_t iteration,
                                                        std::int64_t log_interval, const RunFacts& facts);
  Reporter(const Reporter&) = delete;
  Reporter& operator=(const Reporter&) = delete;
  ~Reporter();

  // One more sink, which gets each `interval`-th iteration.
  void Add(std::unique_ptr<metrics::Sink> sink, std::int64_t interval);

  void Iteration(const IterationReport& report);
  void Evaluation(const EvaluationReport& report);
  // The record has the last iteration that was told, as training may have gone on meanwhile, and names the checkpoint's.
  void Saved(const SaveReport& report);
  void NotSaved(const NotSavedReport& report);  // likewise
  void Histograms(const HistogramReport& report);
  void LeftOut(const LeftOutReport& report);
  void WentBack(const RewindReport& report);
  // Nothing is told after it. `succeeded`: the run has finished, or was stopped and saved.
  void Close(bool succeeded);
  // A line between the others, without spoiling the progress bar.
  void Line(const std::string& text);
  // The same on standard error, "note: " before it.
  void Note(const std::string& text);
  // The same, "warning: " before it.
  void Warn(const std::string& text);

 private:
  // Iterations since the last line of the log.
  struct Interval {
    std::int64_t iterations = 0;
    std::int64_t skipped = 0;
    std::int64_t nan = 0;
    std::int64_t steps = 0;  // neither
    double elapsed_ms = 0;
    double batches = 0;  // whole global batches that their samples are
    double loss = 0;     // sum over those that are neither
  };

  Reporter(std::int64_t log_interval, const RunFacts& facts);
  void Log(const IterationReport& report);
  void Progress(const IterationReport& report);
  void ClearProgress();

  metrics::Sinks sinks_;
  std::int64_t log_interval_ = 1;
  RunFacts facts_;
  Interval interval_;
  std::int64_t iteration_ = 0;         // the last one that was told, or that the run goes on from
  std::int64_t consumed_samples_ = 0;  // after it
  bool terminal_ = false;
  bool bar_shown_ = false;
};

}  // namespace engine::train
