// What a run tells as records of quantities (metrics/quantities.h).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/metrics/sink.h"
#include "engine/plan/plan.h"
#include "engine/train/report.h"

namespace engine::train {

// The means of a plan's metrics over so many samples, by name; nothing of a model whose one metric is the loss. Of counts
// (plan::PlanMetric::classes) the largest and the smallest, by their mean.
std::vector<std::pair<std::string, double>> MetricsOf(const plan::Plan& plan, const std::vector<double>& sums,
                                                      std::int64_t samples);

metrics::Record RecordOf(const IterationReport& report, const RunFacts& facts);
// `consumed_samples`: after the iteration.
metrics::Record RecordOf(const EvaluationReport& report, std::int64_t consumed_samples);
// `iteration`: the last one that was told, and samples after it.
metrics::Record RecordOf(const SaveReport& report, std::int64_t iteration, std::int64_t consumed_samples);
metrics::Record RecordOf(const NotSavedReport& report, std::int64_t iteration, std::int64_t consumed_samples);
metrics::Record RecordOf(const LeftOutReport& report);
metrics::Record RecordOf(const RewindReport& report);

}  // namespace engine::train
