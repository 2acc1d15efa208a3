#include "engine/train/records.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>

namespace engine::train {
namespace {

using Event = metrics::Record::Event;

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

double UnixSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

double Real(std::int64_t number) { return static_cast<double>(number); }

void AddByRank(const metrics::Quantity& quantity, const std::vector<double>& values,
               metrics::Record& record) {
  for (std::size_t rank = 0; rank < values.size(); ++rank)
    record.values.push_back({&quantity, values[rank], fmt::format("{}", rank)});
}

void AddByName(const metrics::Quantity& quantity, const std::vector<std::pair<std::string, double>>& values,
               metrics::Record& record) {
  for (const auto& [name, value] : values) record.values.push_back({&quantity, value, name});
}

}  // namespace

std::vector<std::pair<std::string, double>> MetricsOf(const plan::Plan& plan, const std::vector<double>& sums,
                                                      std::int64_t samples) {
  std::vector<std::pair<std::string, double>> metrics;
  for (size_t m = 0; m < plan.metrics.size() && plan.metrics.size() > 1; ++m) {
    const plan::PlanMetric& metric = plan.metrics[m];
    const auto first = sums.begin() + metric.first;
    if (metric.classes == 0) {
      metrics.emplace_back(metric.name, plan.MeanOf(m, *first, samples));
      continue;
    }
    const double mean =
        std::accumulate(first, first + metric.classes, 0.0) / static_cast<double>(metric.classes);
    const auto [least, most] = std::minmax_element(first, first + metric.classes);
    metrics.emplace_back(metric.name + "_max", *most / mean);
    metrics.emplace_back(metric.name + "_min", *least / mean);
  }
  return metrics;
}

metrics::Record RecordOf(const IterationReport& report, const RunFacts& facts) {
  const double seconds = report.elapsed_ms / 1e3;
  const double batches = Real(report.global_batch) / Real(facts.global_batch);
  const double flops = batches * facts.model_flops / seconds / Real(facts.devices);
  const double batch_samples = Real(facts.global_batch);
  metrics::Record record{.event = Event::kIteration,
                         .iteration = report.iteration,
                         .consumed_samples = report.consumed_samples,
                         .unix_seconds = UnixSeconds()};
  record.values = {
      {&metrics::kLoss, report.loss},
      {&metrics::kGradNorm, report.grad_norm},
      {&metrics::kLearningRate, report.learning_rate},
      {&metrics::kLossScale, report.loss_scale},
      {&metrics::kGlobalBatch, Real(report.global_batch)},
      {&metrics::kConsumedSamples, Real(report.consumed_samples)},
      {&metrics::kConsumedTokens, Real(report.consumed_samples) * (Real(facts.tokens) / batch_samples)},
      {&metrics::kSkippedIterations, Real(report.skipped_iterations)},
      {&metrics::kNanIterations, report.nan ? 1.0 : 0.0},
      {&metrics::kElapsed, report.elapsed_ms},
      {&metrics::kDataWait, report.data_wait_ms},
      {&metrics::kTokensPerSecond, batches * Real(facts.tokens) / seconds},
      {&metrics::kTflops, flops / 1e12},
      {&metrics::kMfu, facts.peak_flops > 0 ? flops / facts.peak_flops : kUnknown},
      {&metrics::kArenaBytes, Real(facts.arena_bytes)},
      {&metrics::kMemoryBytes, report.device_bytes ? Real(*report.device_bytes) : kUnknown},
      {&metrics::kWorldSize, Real(facts.devices)},
      {&metrics::kIterations, Real(report.iterations)}};
  AddByName(metrics::kMetric, report.metrics, record);
  AddByRank(metrics::kRankBusy, report.rank_busy_ms, record);
  AddByRank(metrics::kRankClock, report.rank_clock_mhz, record);
  AddByRank(metrics::kRankTemperature, report.rank_temperature_c, record);
  return record;
}

metrics::Record RecordOf(const EvaluationReport& report, std::int64_t consumed_samples) {
  metrics::Record record{.event = Event::kEvaluation,
                         .iteration = report.iteration,
                         .consumed_samples = consumed_samples,
                         .unix_seconds = UnixSeconds()};
  record.values = {{&metrics::kValidationLoss, report.validation_loss}};
  if (report.token_loss) record.values.push_back({&metrics::kPerplexity, std::exp(*report.token_loss)});
  record.values.push_back({&metrics::kEvaluationTime, report.elapsed_ms});
  AddByName(metrics::kValidationMetric, report.metrics, record);
  for (const evaluate::TaskResult& task : report.tasks) {
    for (const evaluate::Measure& measure : task.measures) {
      const std::string name = task.task + "/" + measure.name;
      record.values.push_back({&metrics::kTask, measure.value, name});
      if (measure.standard_error)
        record.values.push_back({&metrics::kTaskError, *measure.standard_error, name});
    }
  }
  return record;
}

metrics::Record RecordOf(const SaveReport& report, std::int64_t iteration, std::int64_t consumed_samples) {
  const double now = UnixSeconds();
  return {.event = Event::kCheckpoint,
          .iteration = iteration,
          .consumed_samples = consumed_samples,
          .unix_seconds = now,
          .values = {{&metrics::kSavedIteration, Real(report.iteration)},
                     {&metrics::kSaveTime, report.elapsed_ms / 1e3},
                     {&metrics::kStall, report.stall_ms / 1e3},
                     {&metrics::kSavedAt, now}}};
}

metrics::Record RecordOf(const NotSavedReport& report, std::int64_t iteration,
                         std::int64_t consumed_samples) {
  return {.event = Event::kNotSaved,
          .iteration = iteration,
          .consumed_samples = consumed_samples,
          .unix_seconds = UnixSeconds(),
          .values = {{&metrics::kUnsavedIteration, Real(report.iteration)},
                     {&metrics::kSaveFailures, Real(report.failures)}}};
}

metrics::Record RecordOf(const HistogramReport& report) {
  return {.event = Event::kHistograms,
          .iteration = report.iteration,
          .consumed_samples = report.consumed_samples,
          .unix_seconds = UnixSeconds(),
          .histograms = report.histograms};
}

metrics::Record RecordOf(const LeftOutReport& report) {
  return {.event = Event::kLeftOut,
          .iteration = report.iteration,
          .consumed_samples = report.consumed_samples,
          .unix_seconds = UnixSeconds(),
          .values = {{&metrics::kLeftOutIterations, Real(report.left_out)}}};
}

metrics::Record RecordOf(const RewindReport& report) {
  return {.event = Event::kRewind,
          .iteration = report.iteration,
          .consumed_samples = report.consumed_samples,
          .unix_seconds = UnixSeconds(),
          .values = {{&metrics::kRewinds, Real(report.rewinds)},
                     {&metrics::kBadIteration, Real(report.bad_iteration)}}};
}

}  // namespace engine::train
