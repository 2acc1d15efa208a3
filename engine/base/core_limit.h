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

// The cores that the calling thread may be scheduled on (sched_getaffinity(2); threads and processes that it starts inherit them), or,
// where the quota of one of its control groups is less, that many, rounded up: cpu.max of cgroups v2, cpu.cfs_quota_us by
// cpu.cfs_period_us of v1, which `docker run --cpus` and the limits of Kubernetes set. More threads than that would stand still for a
// part of each period. `root`: of the file system, for tests.
CoreLimit CoreLimitOfProcess(const std::string& root = "");

// The cores of that limit, which is looked up once.
int CoresOfProcess();

// The number of cores on which the ranks of this host compute together. It is that of `limit`, this process's; but where a launcher may
// have bound the process to some of the job's cores here, it is that of the job, unless a quota leaves fewer. `bound_within`: the
// cores of the job; 0: all that the machine has, which are `machine`; nullopt: the launcher binds no process.
int CoresOfRanks(const CoreLimit& limit, std::optional<std::int64_t> bound_within, int machine);

// The number of cores that each of `ranks` ranks computes with: an equal share of those, but no more than this process has itself.
int ShareOfCores(const CoreLimit& limit, int of_ranks, std::int64_t ranks);

}  // namespace engine
