// HDF5 is not used where memory ends.
#include "engine/checkpoint/hdf5_library.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

namespace engine::checkpoint::testing {
namespace {

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which need address space without end

constexpr int kUsed = 3, kRefused = 7;

// In a child process that may have so many bytes of address space more.
int UseWith(std::int64_t more_bytes) {
  const pid_t child = fork();
  if (child == 0) {
    std::int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const auto limit = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + more_bytes);
    const rlimit limits = {limit, limit};
    if (setrlimit(RLIMIT_AS, &limits) != 0) _exit(1);
    _exit(ExpectMemoryForHdf5().ok() ? kUsed : kRefused);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_CASE("hdf5: too little memory is an error before HDF5 meets it") {
  CHECK(UseWith(std::int64_t{256} << 20) == kUsed);
  CHECK(UseWith(std::int64_t{64} << 20) == kRefused);
}

#endif

}  // namespace
}  // namespace engine::checkpoint::testing
