#include "engine/base/memory_limit.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>

#include "engine/base/control_group.h"

namespace engine {
namespace {

// The number that a text begins with; "max" and "unlimited" are none.
std::optional<std::int64_t> NumberFrom(std::istream&& text) {
  std::uint64_t number = 0;
  if (!(text >> number)) return std::nullopt;
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  return static_cast<std::int64_t>(std::min(number, kMost));
}

std::optional<std::int64_t> NumberIn(const std::string& path) { return NumberFrom(std::ifstream(path)); }

// The soft limit on address space in bytes, from /proc/self/limits (proc(5)); none where it is unlimited.
std::optional<std::int64_t> AddressSpaceLimit(const std::string& root) {
  constexpr std::string_view kName = "Max address space ";
  std::ifstream limits(root + "/proc/self/limits");
  for (std::string line; std::getline(limits, line);) {  // name, soft limit, hard limit, unit
    if (!line.starts_with(kName)) continue;
    return NumberFrom(std::istringstream(line.substr(kName.size())));
  }
  return std::nullopt;
}

// Bytes of address space that this process has in use; 0: not known.
std::int64_t MappedBytes(const std::string& root) {
  return NumberIn(root + "/proc/self/statm").value_or(0) * sysconf(_SC_PAGESIZE);
}

}  // namespace

MemoryLimit MemoryOfProcess(int processes, const std::string& root) {
  MemoryLimit least{static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE) / processes,
                    "this machine has"};
  const auto take = [&](std::int64_t bytes, const std::string& source) {
    if (bytes < least.bytes) least = {bytes, source};
  };
  for (const std::string& file : PathsOf({"memory", "memory.max", "memory.limit_in_bytes"}, root)) {
    const std::optional<std::int64_t> limit = NumberIn(root + file);
    if (limit) take(*limit / processes, fmt::format("the control group of this process ({}) has", file));
  }
  if (const std::optional<std::int64_t> limit = AddressSpaceLimit(root)) {
    take(std::max<std::int64_t>(0, *limit - MappedBytes(root)),
         "the limit on address space (ulimit -v) leaves");
  }
  return least;
}

}  // namespace engine
