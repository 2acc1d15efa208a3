// How much memory this process may use: what the machine has, or less where a limit is set.
#pragma once

#include <cstdint>
#include <string>

namespace engine {

struct MemoryLimit {
  std::int64_t bytes = 0;
  std::string source;  // to be said before "8 GiB of memory": "this machine has"
};

// The least of the machine's memory (RAM), shared by `processes` like this one; the limits of this process's
// control groups (cgroups v2, v1), shared likewise; and the address space that its RLIMIT_AS (ulimit -v)
// leaves to it. `root`: of the file system, for tests.
MemoryLimit MemoryOfProcess(int processes = 1, const std::string& root = "");

}  // namespace engine
