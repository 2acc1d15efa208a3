// The sinks that a recipe's [logging] names, beside metrics.jsonl.
#pragma once

#include "engine/metrics/sink.h"
#include "engine/train/position.h"
#include "engine/train/report.h"
#include "engine/train/run_context.h"

namespace engine::train {

// The host of each rank, in the process that leads; every process of a run calls it, where the recipe names sinks.
absl::StatusOr<std::vector<std::string>> HostsOf(const RunContext& run);

metrics::RunDescription DescriptionOf(const RunContext& run, const Position& position,
                                      const std::vector<std::string>& hosts);

void AddSinks(const recipe::Logging& logging, const std::string& folder,
              const metrics::RunDescription& description, Reporter& reporter);

}  // namespace engine::train
