// How many cores this process may use at a time: what the machine has, or fewer where a limit is set.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace engine {

struct CoreLimit {
  int cores = 1;
  std::string limited_by;  // the file of the control group that has no more; empty: there is none
};

// The cores that the calling thread may be scheduled on (sched_getaffinity(2); threads and processes that it starts inherit them), or, where the quota of one of its control groups is
// less, that many, rounded up: cpu.max of cgroups v2, cpu.cfs_quota_us by cpu.cfs_period_us of v1, which `docker run --cpus` and the
// limits of Kubernetes set. More threads than that would stand still for a part of each period. `root`: of the file system, for
// tests.
CoreLimit CoreLimitOfProcess(const std::string& root = "");

// The cores of that limit, which is looked up once.
int CoresOfProcess();

// The cores on which the ranks of this host compute together. Those of `limit`, this process's; or, where a launcher may have bound
// it to some (`bound_within`: how many it has there; 0: all of the machine's, `machine`), all of them, unless a quota leaves fewer.
int CoresOfRanks(const CoreLimit& limit, std::optional<std::int64_t> bound_within, int machine);

// How many of them each of `ranks` ranks computes with: an equal share, of the cores that this process has itself.
int ShareOfCores(const CoreLimit& limit, int of_ranks, std::int64_t ranks);

}  // namespace engine
