#include "engine/base/memory_limit.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <unistd.h>

#include <string>

#include "tests/base/file_root.h"

namespace engine {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

}  // namespace

TEST_CASE("memory limit: without any it is the machine's, of which each process has its part") {
  const FileRoot root;
  const MemoryLimit all = MemoryOfProcess(1, root.path());
  CHECK(all.source == "this machine has");
  CHECK(all.bytes == static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE));
  CHECK(MemoryOfProcess(4, root.path()).bytes == all.bytes / 4);
}

TEST_CASE("memory limit: control groups of version 2, the least of all above") {
  FileRoot root;
  root.Add("/proc/self/cgroup", "0::/a/b\n");
  root.Add("/sys/fs/cgroup/a/b/memory.max", "max\n");
  CHECK(MemoryOfProcess(1, root.path()).source == "this machine has");
  root.Add("/sys/fs/cgroup/a/memory.max", "67108864\n");
  CHECK(MemoryOfProcess(1, root.path()).bytes == 64 * kMiB);
  CHECK(MemoryOfProcess(2, root.path()).bytes == 32 * kMiB);
  CHECK(MemoryOfProcess(1, root.path()).source ==
        "the control group of this process (/sys/fs/cgroup/a/memory.max) has");
  root.Add("/sys/fs/cgroup/a/b/memory.max", "33554432\n");
  CHECK(MemoryOfProcess(1, root.path()).bytes == 32 * kMiB);
}

TEST_CASE("memory limit: control groups of version 1, and the one of a container, whose name is another's") {
  FileRoot root;
  root.Add("/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/1f\n0::/y\n");
  root.Add("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  CHECK(MemoryOfProcess(1, root.path()).source == "this machine has");
  root.Add("/sys/fs/cgroup/memory/memory.limit_in_bytes", "16777216\n");
  CHECK(MemoryOfProcess(1, root.path()).bytes == 16 * kMiB);
  root.Add("/sys/fs/cgroup/memory/docker/1f/memory.limit_in_bytes", "8388608\n");
  CHECK(MemoryOfProcess(1, root.path()).bytes == 8 * kMiB);
  for (const char* no_group : {"no group\n", "0::x\n", "0::\n"}) {
    root.Add("/proc/self/cgroup", no_group);
    CHECK(MemoryOfProcess(1, root.path()).source == "this machine has");
  }
  root.Add("/proc/self/cgroup", "no group\n");
  CHECK(MemoryOfProcess(1, root.path()).source == "this machine has");
}

// proc(5) gives the lines as name, soft limit, hard limit, unit.
TEST_CASE("memory limit: what RLIMIT_AS leaves") {
  FileRoot root;
  root.Add("/proc/self/statm", fmt::format("{} 7 7\n", 48 * kMiB / sysconf(_SC_PAGESIZE)));
  const std::string others =
      "Limit                     Soft Limit           Hard Limit           Units     \n"
      "Max data size             1024                 unlimited            bytes     \n";
  root.Add("/proc/self/limits",
           others + "Max address space         unlimited            unlimited            bytes     \n");
  CHECK(MemoryOfProcess(4, root.path()).source == "this machine has");
  root.Add("/proc/self/limits",
           others + "Max address space         67108864             unlimited            bytes     \n");
  const MemoryLimit limit = MemoryOfProcess(4, root.path());  // each process has a limit of its own
  CHECK(limit.source == "the limit on address space (ulimit -v) leaves");
  CHECK(limit.bytes == 16 * kMiB);
  root.Add("/proc/self/limits",
           others + "Max address space         1048576              unlimited            bytes     \n");
  CHECK(MemoryOfProcess(1, root.path()).bytes == 0);
}

}  // namespace engine
