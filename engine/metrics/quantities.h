// What a run measures, each quantity stated once: what metrics.jsonl, TensorBoard and W&B, and Prometheus call it, and
// the factors from the unit of metrics.jsonl to theirs. Tags are Megatron-LM's where it logs the same, so that curves
// of both lie in one chart, and "engine/…" elsewhere. Names for Prometheus are in base units, counters end in _total.
#pragma once

#include <array>

namespace engine::metrics {

struct Quantity {
  enum class Type { kGauge, kCounter, kHistogram };  // Prometheus' types
  enum class Each { kOne, kName, kRank };            // how many values an event has of it

  const char* key = nullptr;  // in metrics.jsonl; null: it is not there
  const char* tag = nullptr;  // in TensorBoard and W&B; a value's own name goes behind it
  double tag_factor = 1;
  bool over_samples = false;     // a second curve, over the samples consumed: "TAG vs samples"
  const char* metric = nullptr;  // for Prometheus; a value's own name is a label, "name" or "rank"
  double metric_factor = 1;
  Type type = Type::kGauge;
  const char* help = "";
  Each each = Each::kOne;
  bool integer = false;  // written as one in JSON
};

// In the first line of metrics.jsonl that a resumed process writes: the iteration after which it goes on.
inline constexpr const char* kResumedIterationKey = "resumed_iteration";

// Of iterations.
inline constexpr Quantity kLoss{.key = "loss",
                                .tag = "lm loss",
                                .over_samples = true,
                                .metric = "engine_loss",
                                .help = "Training loss of the last iteration, nats per token."};
inline constexpr Quantity kGradNorm{.key = "grad_norm",
                                    .tag = "grad-norm",
                                    .over_samples = true,
                                    .metric = "engine_grad_norm",
                                    .help = "Global norm of the gradient, before clipping."};
inline constexpr Quantity kLearningRate{.key = "learning_rate",
                                        .tag = "learning-rate",
                                        .over_samples = true,
                                        .metric = "engine_learning_rate",
                                        .help = "Learning rate of the last update."};
inline constexpr Quantity kLossScale{.key = "loss_scale",
                                     .tag = "loss-scale",
                                     .over_samples = true,
                                     .metric = "engine_loss_scale",
                                     .help = "Factor of the loss; 1 but in fp16."};
inline constexpr Quantity kGlobalBatch{.key = "global_batch",
                                       .tag = "batch-size",
                                       .over_samples = true,
                                       .metric = "engine_batch_samples",
                                       .help = "Samples of the last iteration.",
                                       .integer = true};
inline constexpr Quantity kConsumedSamples{.key = "consumed_samples",
                                           .tag = "samples vs steps",
                                           .metric = "engine_consumed_samples_total",
                                           .type = Quantity::Type::kCounter,
                                           .help = "Samples since the beginning of the training.",
                                           .integer = true};
inline constexpr Quantity kConsumedTokens{.key = "consumed_tokens",
                                          .tag = "engine/consumed-tokens",
                                          .metric = "engine_consumed_tokens_total",
                                          .type = Quantity::Type::kCounter,
                                          .help = "Tokens since the beginning of the training.",
                                          .integer = true};
inline constexpr Quantity kSkippedIterations{.key = "skipped_iterations",
                                             .tag = "engine/skipped-iterations",
                                             .metric = "engine_skipped_iterations_total",
                                             .type = Quantity::Type::kCounter,
                                             .help = "Iterations without an update, as gradients overflowed.",
                                             .integer = true};
inline constexpr Quantity kNanIterations{
    .key = "nan_iterations",
    .metric = "engine_nan_iterations_total",
    .type = Quantity::Type::kCounter,
    .help = "Iterations whose loss or gradient norm was not finite, which ends a run.",
    .integer = true};
inline constexpr Quantity kElapsed{.key = "elapsed_ms",
                                   .tag = "iteration-time",
                                   .tag_factor = 1e-3,
                                   .metric = "engine_iteration_seconds",
                                   .metric_factor = 1e-3,
                                   .type = Quantity::Type::kHistogram,
                                   .help = "Time of an iteration, from end to end."};
inline constexpr Quantity kDataWait{.key = "data_wait_ms",
                                    .tag = "engine/data-wait-seconds",
                                    .tag_factor = 1e-3,
                                    .metric = "engine_data_wait_seconds",
                                    .metric_factor = 1e-3,
                                    .help = "How long the last iteration waited for its samples."};
inline constexpr Quantity kTokensPerSecond{.key = "tokens_per_second",
                                           .tag = "engine/tokens-per-second",
                                           .metric = "engine_tokens_per_second",
                                           .help = "Tokens per second of all ranks, in the last iteration."};
inline constexpr Quantity kTflops{.key = "tflops_per_device",
                                  .tag = "throughput",
                                  .metric = "engine_device_flops_per_second",
                                  .metric_factor = 1e12,
                                  .help = "FLOPs of the model per second and device, in the last iteration."};
inline constexpr Quantity kMfu{.key = "mfu",
                               .tag = "engine/mfu",
                               .metric = "engine_mfu_ratio",
                               .help = "FLOPs of the model over the device's peak, in the last iteration."};
inline constexpr Quantity kArenaBytes{.key = "arena_bytes",
                                      .tag = "engine/arena-bytes",
                                      .metric = "engine_memory_arena_bytes",
                                      .help = "Arena of the fullest rank, as planned.",
                                      .integer = true};
inline constexpr Quantity kMemoryBytes{.key = "memory_bytes",
                                       .tag = "engine/memory-bytes",
                                       .metric = "engine_memory_device_bytes",
                                       .help = "Memory in use on the GPU of rank 0, by all that run there.",
                                       .integer = true};
inline constexpr Quantity kMetric{
    .key = "metrics",
    .tag = "engine/metrics/",
    .metric = "engine_metric",
    .help = "A metric of a model with several, by its name, in the last iteration.",
    .each = Quantity::Each::kName};
inline constexpr Quantity kRankBusy{
    .key = "rank_busy_ms",
    .metric = "engine_rank_busy_seconds",
    .metric_factor = 1e-3,
    .help =
        "From the beginning of an iteration to that of its update, by rank, in the last one that was logged.",
    .each = Quantity::Each::kRank};
inline constexpr Quantity kRankClock{
    .key = "rank_clock_mhz",
    .metric = "engine_rank_clock_hertz",
    .metric_factor = 1e6,
    .help = "Clock of the GPU's multiprocessors, by rank, when an iteration was last logged.",
    .each = Quantity::Each::kRank};
inline constexpr Quantity kRankTemperature{
    .key = "rank_temperature_c",
    .metric = "engine_rank_temperature_celsius",
    .help = "Temperature of the GPU, by rank, when an iteration was last logged.",
    .each = Quantity::Each::kRank};
inline constexpr Quantity kWorldSize{.key = "ranks",
                                     .tag = "world-size",
                                     .over_samples = true,
                                     .metric = "engine_ranks",
                                     .help = "Ranks of the run.",
                                     .integer = true};
inline constexpr Quantity kIterations{
    .metric = "engine_training_iterations", .help = "Iterations of the whole training.", .integer = true};
// Of evaluations.
inline constexpr Quantity kValidationLoss{.key = "validation_loss",
                                          .tag = "lm loss validation",
                                          .over_samples = true,
                                          .metric = "engine_validation_loss",
                                          .help = "Loss of the last evaluation, nats per token."};
inline constexpr Quantity kPerplexity{.tag = "lm loss validation ppl",
                                      .over_samples = true,
                                      .metric = "engine_validation_perplexity",
                                      .help = "e to the loss of the last evaluation."};
inline constexpr Quantity kValidationMetric{
    .key = "metrics",
    .tag = "engine/validation/",
    .metric = "engine_validation_metric",
    .help = "A metric of a model with several, by its name, in the last evaluation.",
    .each = Quantity::Each::kName};
inline constexpr Quantity kTask{.key = "tasks",
                                .tag = "engine/tasks/",
                                .metric = "engine_task",
                                .help = "A measure of a task in the last evaluation, as TASK/MEASURE.",
                                .each = Quantity::Each::kName};
inline constexpr Quantity kTaskError{.key = "task_errors",
                                     .tag = "engine/task-errors/",
                                     .metric = "engine_task_standard_error",
                                     .help = "The standard error of a measure of a task.",
                                     .each = Quantity::Each::kName};
inline constexpr Quantity kEvaluationTime{.key = "elapsed_ms",
                                          .tag = "engine/evaluation-seconds",
                                          .tag_factor = 1e-3,
                                          .metric = "engine_evaluation_seconds",
                                          .metric_factor = 1e-3,
                                          .type = Quantity::Type::kHistogram,
                                          .help = "Time of an evaluation."};
// Of checkpoints.
inline constexpr Quantity kSavedIteration{.key = "saved_iteration",
                                          .metric = "engine_checkpoint_iteration",
                                          .help = "The iteration after which the last checkpoint was made.",
                                          .integer = true};
inline constexpr Quantity kSaveTime{
    .key = "save_seconds",
    .tag = "engine/checkpoint-save-seconds",
    .metric = "engine_checkpoint_save_seconds",
    .type = Quantity::Type::kHistogram,
    .help = "From the end of an iteration until its checkpoint is whole on disk."};
inline constexpr Quantity kStall{
    .key = "stall_seconds",
    .tag = "engine/checkpoint-stall-seconds",
    .metric = "engine_checkpoint_stall_seconds",
    .type = Quantity::Type::kHistogram,
    .help = "How long training stood still for checkpoints since the one before."};
inline constexpr Quantity kSavedAt{.metric = "engine_checkpoint_last_success_timestamp_seconds",
                                   .help = "When the last checkpoint was whole on disk, as Unix time."};
// What is told of a checkpoint that could not be written.
inline constexpr Quantity kUnsavedIteration{
    .key = "unsaved_iteration",
    .metric = "engine_checkpoint_last_failed_iteration",
    .help = "The iteration whose checkpoint was the last that could not be written.",
    .integer = true};
inline constexpr Quantity kSaveFailures{.key = "save_failures",
                                        .tag = "engine/checkpoint-failures",
                                        .metric = "engine_checkpoint_failures_total",
                                        .type = Quantity::Type::kCounter,
                                        .help = "Checkpoints that could not be written.",
                                        .integer = true};
// Of iterations that are left out.
inline constexpr Quantity kLeftOutIterations{.key = "left_out_iterations",
                                             .tag = "engine/left-out-iterations",
                                             .metric = "engine_left_out_iterations_total",
                                             .type = Quantity::Type::kCounter,
                                             .help = "Iterations whose data was consumed without training.",
                                             .integer = true};
// Of a return to a checkpoint.
inline constexpr Quantity kRewinds{.key = "rewinds",
                                   .tag = "engine/rewinds",
                                   .metric = "engine_rewinds_total",
                                   .type = Quantity::Type::kCounter,
                                   .help = "How often the training has gone back to a checkpoint.",
                                   .integer = true};
inline constexpr Quantity kBadIteration{.key = "bad_iteration",
                                        .metric = "engine_last_bad_iteration",
                                        .help = "The iteration for which the training went back last.",
                                        .integer = true};

inline constexpr std::array kQuantities = {&kLoss,
                                           &kGradNorm,
                                           &kLearningRate,
                                           &kLossScale,
                                           &kGlobalBatch,
                                           &kConsumedSamples,
                                           &kConsumedTokens,
                                           &kSkippedIterations,
                                           &kNanIterations,
                                           &kElapsed,
                                           &kDataWait,
                                           &kTokensPerSecond,
                                           &kTflops,
                                           &kMfu,
                                           &kArenaBytes,
                                           &kMemoryBytes,
                                           &kMetric,
                                           &kRankBusy,
                                           &kRankClock,
                                           &kRankTemperature,
                                           &kWorldSize,
                                           &kIterations,
                                           &kValidationLoss,
                                           &kPerplexity,
                                           &kValidationMetric,
                                           &kTask,
                                           &kTaskError,
                                           &kEvaluationTime,
                                           &kSavedIteration,
                                           &kSaveTime,
                                           &kStall,
                                           &kSavedAt,
                                           &kUnsavedIteration,
                                           &kSaveFailures,
                                           &kLeftOutIterations,
                                           &kRewinds,
                                           &kBadIteration};

}  // namespace engine::metrics
