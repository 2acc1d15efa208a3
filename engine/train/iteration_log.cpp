#include "engine/train/iteration_log.h"

#include <cstdlib>
#include <string>
#include <utility>

namespace engine::train {
namespace {

std::string BusyKey(std::int64_t rank, std::int64_t iteration) {
  return fmt::format("busy time of rank {} in iteration {}", rank, iteration);
}

}  // namespace

absl::Status IterationLog::Report(IterationReport report,
                                  const std::vector<executor::IterationResult>& results) {
  const bool logged = IsLogged(report.iteration, report.iterations, run_.recipe.logging.interval);
  if (run_.Leads() && run_.device.used_bytes && (logged || !device_bytes_))
    device_bytes_ = run_.device.used_bytes();
  report.device_bytes = device_bytes_;
  if (run_.plan.mesh.world() > 1 && logged) {
    for (const executor::IterationResult& result : results) report.rank_busy_ms.push_back(result.busy_ms);
    if (!run_.Leads()) {
      return run_.processes->Set(BusyKey(*run_.device.rank, report.iteration),
                                 fmt::format("{}", report.rank_busy_ms[0]));
    }
    if (run_.processes != nullptr) {
      logged_ = std::move(report);
      return absl::OkStatus();
    }
  }
  if (run_.reporter != nullptr) run_.reporter->Iteration(report);
  return absl::OkStatus();
}

absl::Status IterationLog::Flush() {
  if (!logged_) return absl::OkStatus();
  IterationReport report = *std::move(logged_);
  logged_.reset();
  std::vector<std::string> keys;
  for (std::int64_t rank = 1; rank < run_.plan.mesh.world(); ++rank) {
    keys.push_back(BusyKey(rank, report.iteration));
  }
  const absl::StatusOr<std::vector<std::string>> times = run_.processes->TakeAll(keys);
  if (!times.ok()) {  // the run has ended; what is known of the iteration is still told
    report.rank_busy_ms.clear();
    run_.reporter->Iteration(report);
    return times.status();
  }
  for (const std::string& time : *times) report.rank_busy_ms.push_back(std::strtod(time.c_str(), nullptr));
  run_.reporter->Iteration(report);
  return absl::OkStatus();
}

}  // namespace engine::train
