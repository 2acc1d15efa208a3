// What is told of iterations whose results are known.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/train/run_context.h"
#include "engine/train/slow_ranks.h"

namespace engine::train {

// Hands the reports of iterations, in order, to the run's reporter. Where ranks are processes it collects the
// busy times of all of them for the iterations that the log has a line of: one report may be waiting for these.
class IterationLog {
 public:
  // `run` lives as long as this.
  explicit IterationLog(const RunContext& run) : run_(run) {}

  // `results`: of the ranks of this process. A report that needs times of other processes is kept back until
  // Flush.
  absl::Status Report(IterationReport report, const std::vector<executor::IterationResult>& results);

  // Reports the iteration that is kept back, if there is one. Called when the next one has been started and, where
  // the device works beside the host, before its results are waited for: the times are here by then, or the
  // device has work while they are on their way.
  absl::Status Flush();

 private:
  // Warns of ranks that the report shows to be slow, where they have cores of their own; `health`: of each rank's device.
  void TellSlow(const IterationReport& report, const std::vector<std::optional<state::DeviceHealth>>& health);
  // Of this process's device, asked for again after some seconds.
  std::optional<state::DeviceHealth> Health();

  const RunContext& run_;
  SlowRanks slow_;
  std::optional<state::DeviceHealth> health_;
  std::optional<Clock::time_point> health_at_;
  std::optional<std::int64_t> device_bytes_;  // as it was last asked for
  std::optional<IterationReport> logged_;     // of rank 0: not yet told, for want of the other ranks' times
};

}  // namespace engine::train
