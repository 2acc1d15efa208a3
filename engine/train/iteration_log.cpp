#include "engine/train/iteration_log.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>

namespace engine::train {
namespace {

std::string BusyKey(std::int64_t rank, std::int64_t iteration) {
  return fmt::format("busy time of rank {} in iteration {}", rank, iteration);
}

constexpr double kHealthMs = 5000;  // so old may be what a device's health was found to be

// What a rank says of a logged iteration: its busy time in ms, and its device's health.
struct OfRank {
  double busy_ms = 0;
  std::optional<state::DeviceHealth> health;
};

std::string TextOf(const OfRank& of) {
  if (!of.health) return fmt::format("{}", of.busy_ms);
  return fmt::format("{} {} {} {}", of.busy_ms, of.health->clock_mhz, of.health->temperature_c,
                     of.health->text);
}

OfRank OfRankIn(const std::string& text) {
  char* at = nullptr;
  OfRank of{.busy_ms = std::strtod(text.c_str(), &at), .health = std::nullopt};
  if (*at == '\0') return of;
  state::DeviceHealth& health = of.health.emplace();
  health.clock_mhz = std::strtod(at, &at);
  health.temperature_c = std::strtod(at, &at);
  if (*at == ' ') health.text = at + 1;
  return of;
}

// By rank, into the report; nothing where no rank's device says anything.
void AddHealth(const std::vector<std::optional<state::DeviceHealth>>& ranks, IterationReport* report) {
  if (std::none_of(ranks.begin(), ranks.end(), [](const auto& health) { return health.has_value(); })) return;
  for (const std::optional<state::DeviceHealth>& health : ranks) {
    constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
    report->rank_clock_mhz.push_back(health ? health->clock_mhz : kUnknown);
    report->rank_temperature_c.push_back(health ? health->temperature_c : kUnknown);
  }
}

}  // namespace

std::optional<state::DeviceHealth> IterationLog::Health() {
  if (!run_.device.health) return std::nullopt;
  if (!health_at_ || MillisecondsSince(*health_at_) > kHealthMs) {
    health_ = run_.device.health();
    health_at_ = Clock::now();
  }
  return health_;
}

void IterationLog::TellSlow(const IterationReport& report,
                            const std::vector<std::optional<state::DeviceHealth>>& health) {
  if (run_.device.shares_cores) return;
  for (const SlowRanks::Slow& slow : slow_.Add(report.rank_busy_ms)) {
    const std::optional<state::DeviceHealth>& device = health[static_cast<size_t>(slow.rank)];
    run_.reporter->Warn(
        fmt::format("rank {} is slow: its passes take {:.1f} times as long as the median of the ranks, in {} "
                    "of the last {} logged "
                    "iterations{}",
                    slow.rank, slow.factor, SlowRanks::kOften, SlowRanks::kWindow,
                    device ? "; its GPU: " + device->text : ""));
  }
}

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
                                 TextOf({report.rank_busy_ms[0], Health()}));
    }
    if (run_.processes != nullptr) {
      logged_ = std::move(report);
      return absl::OkStatus();
    }
  }
  if (run_.plan.mesh.world() == 1 && logged) AddHealth({Health()}, &report);
  run_.Tell(report);
  if (run_.reporter != nullptr)
    TellSlow(report, std::vector<std::optional<state::DeviceHealth>>(report.rank_busy_ms.size()));
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
    run_.Tell(report);
    return times.status();
  }
  std::vector<std::optional<state::DeviceHealth>> health = {Health()};
  for (const std::string& text : *times) {
    OfRank of = OfRankIn(text);
    report.rank_busy_ms.push_back(of.busy_ms);
    health.push_back(std::move(of.health));
  }
  AddHealth(health, &report);
  run_.Tell(report);
  TellSlow(report, health);
  return absl::OkStatus();
}

}  // namespace engine::train
