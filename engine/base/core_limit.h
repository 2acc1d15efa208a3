// How many cores this process may use at a time: what the machine has, or fewer where a limit is set.
#pragma once

#include <string>

namespace engine {

struct CoreLimit {
  int cores = 1;
  std::string limited_by;  // the file of the control group that has no more; empty: there is none
};

// The cores that this process may be scheduled on (sched_getaffinity(2)), or, where the quota of one of its control groups is
// less, that many, rounded up: cpu.max of cgroups v2, cpu.cfs_quota_us by cpu.cfs_period_us of v1, which `docker run --cpus` and the
// limits of Kubernetes set. More threads than that would stand still for a part of each period. `root`: of the file system, for
// tests.
CoreLimit CoreLimitOfProcess(const std::string& root = "");

// The cores of that limit, which is looked up once.
int CoresOfProcess();

}  // namespace engine
