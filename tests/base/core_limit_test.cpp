#include "engine/base/core_limit.h"

#include <doctest/doctest.h>
#include <sched.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/base/file_root.h"

namespace engine {

TEST_CASE("core limit: the quotas of control groups of version 2, the least of all above, rounded up") {
  FileRoot root;
  const int all = CoreLimitOfProcess(FileRoot().path()).cores;
  CHECK(CoreLimitOfProcess(root.path()).cores == all);
  root.Add("/proc/self/cgroup", "0::/a/b\n");
  root.Add("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  CHECK(CoreLimitOfProcess(root.path()).cores == all);
  CHECK(CoreLimitOfProcess(root.path()).limited_by.empty());
  root.Add("/sys/fs/cgroup/a/b/cpu.max", "100000000 100000\n");  // 1000 cores
  CHECK(CoreLimitOfProcess(root.path()).cores == all);
  root.Add("/sys/fs/cgroup/a/cpu.max", "20000 100000\n");
  CHECK(CoreLimitOfProcess(root.path()).cores == 1);
  if (all < 2) return;
  CHECK(CoreLimitOfProcess(root.path()).limited_by == "/sys/fs/cgroup/a/cpu.max");
  root.Add("/sys/fs/cgroup/a/cpu.max", "100001 100000\n");
  CHECK(CoreLimitOfProcess(root.path()).cores == 2);
  root.Add("/sys/fs/cgroup/a/b/cpu.max", "50000 50000\n");
  CHECK(CoreLimitOfProcess(root.path()).cores == 1);
  for (const char* nothing : {"", "100000\n", "100000 0\n", "-1 100000\n", "a b\n"}) {
    root.Add("/sys/fs/cgroup/a/cpu.max", nothing);
    root.Add("/sys/fs/cgroup/a/b/cpu.max", nothing);
    CHECK(CoreLimitOfProcess(root.path()).cores == all);
  }
}

TEST_CASE("core limit: control groups of version 1, and the one of a container, whose name is another's") {
  FileRoot root;
  const int all = CoreLimitOfProcess(FileRoot().path()).cores;
  root.Add("/proc/self/cgroup", "5:cpu,cpuacct:/docker/1f\n4:memory:/x\n0::/y\n");
  root.Add("/sys/fs/cgroup/cpu/docker/1f/cpu.cfs_quota_us", "-1\n");
  root.Add("/sys/fs/cgroup/cpu/docker/1f/cpu.cfs_period_us", "100000\n");
  CHECK(CoreLimitOfProcess(root.path()).cores == all);
  root.Add("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n");
  CHECK(CoreLimitOfProcess(root.path()).cores == all);  // by what period is not known
  root.Add("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  CHECK(CoreLimitOfProcess(root.path()).cores == 1);
}

TEST_CASE("core limit: the cores that a process is scheduled on") {
  cpu_set_t before, one;
  REQUIRE(sched_getaffinity(0, sizeof(before), &before) == 0);
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &before)) continue;
    CPU_SET(core, &one);
    break;
  }
  REQUIRE(sched_setaffinity(0, sizeof(one), &one) == 0);
  CHECK(CoreLimitOfProcess(FileRoot().path()).cores == 1);
  REQUIRE(sched_setaffinity(0, sizeof(before), &before) == 0);
}

TEST_CASE("core limit: an equal share for each rank, whose launcher may have bound it to its own cores") {
  struct Case {
    CoreLimit limit;  // of this process
    std::optional<std::int64_t> bound_within;
    std::int64_t ranks;
    int of_ranks, share;
  };
  for (const auto& [limit, bound_within, ranks, of_ranks, share] : std::vector<Case>{
           {{16, ""}, std::nullopt, 4, 16, 4},  // of the machine's 64, docker --cpuset-cpus
           {{4, "cpu.max"}, std::nullopt, 4, 4, 1},
           {{2, ""}, std::nullopt, 4, 2, 1},
           {{4, ""}, 16, 4, 16, 4},   // srun -n 4 -c 4, each bound to its own
           {{16, ""}, 16, 4, 16, 4},  // the same, not bound
           {{1, ""}, 4, 4, 4, 1},
           {{2, ""}, 2, 4, 2, 1},    // two for four ranks
           {{1, ""}, 0, 2, 64, 1},   // mpirun --bind-to core
           {{32, ""}, 0, 8, 64, 8},  // --bind-to numa
           {{4, "cpu.max"}, 0, 4, 4, 1},
       }) {
    CAPTURE(limit.cores);
    CAPTURE(ranks);
    CHECK(CoresOfRanks(limit, bound_within, 64) == of_ranks);
    CHECK(ShareOfCores(limit, of_ranks, ranks) == share);
  }
}

}  // namespace engine
