#include "engine/base/core_limit.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <fstream>
#include <optional>
#include <thread>
#include <vector>

#include "engine/base/control_group.h"

namespace engine {
namespace {

// Processor time by time, both in µs, where a file has them; "max" and −1 are no quota.
std::optional<double> QuotaOf(const std::string& quota_path, const std::string& period_path) {
  std::ifstream file(quota_path);
  double quota = 0, period = 0;
  if (!(file >> quota)) return std::nullopt;
  if (period_path == quota_path)
    file >> period;
  else
    std::ifstream(period_path) >> period;
  if (quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

// Counts the cores that this thread may be scheduled on. Where the system does not say which these are, all that the machine has count.
int ScheduledCores() {
  constexpr std::size_t kMostCores = std::size_t{1} << 20;
  for (std::size_t cores = CPU_SETSIZE; cores <= kMostCores; cores *= 2) {
    std::vector<cpu_set_t> sets(cores / CPU_SETSIZE);
    const std::size_t bytes = sets.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(0, bytes, sets.data()) == 0) return std::max(1, CPU_COUNT_S(bytes, sets.data()));
    if (errno != EINVAL) break;  // which says that the system's own sets are larger
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

CoreLimit CoreLimitOfProcess(const std::string& root) {
  CoreLimit least{ScheduledCores(), ""};
  const std::vector<std::string> quotas = PathsOf({"cpu", "cpu.max", "cpu.cfs_quota_us"}, root);
  const std::vector<std::string> periods = PathsOf({"cpu", "cpu.max", "cpu.cfs_period_us"}, root);
  for (std::size_t i = 0; i < quotas.size(); ++i) {
    const std::optional<double> quota = QuotaOf(root + quotas[i], root + periods[i]);
    if (quota && std::ceil(*quota) < least.cores) least = {static_cast<int>(std::ceil(*quota)), quotas[i]};
  }
  return least;
}

int CoresOfProcess() {
  static const int cores = CoreLimitOfProcess().cores;
  return cores;
}

int CoresOfRanks(const CoreLimit& limit, std::optional<std::int64_t> bound_within, int machine) {
  if (!bound_within || !limit.limited_by.empty()) return limit.cores;
  return std::max(limit.cores, *bound_within > 0 ? static_cast<int>(*bound_within) : machine);
}

int ShareOfCores(const CoreLimit& limit, int of_ranks, std::int64_t ranks) {
  return std::min(limit.cores, std::max(1, static_cast<int>(of_ranks / ranks)));
}

}  // namespace engine
