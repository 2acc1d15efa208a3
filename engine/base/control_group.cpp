#include "engine/base/control_group.h"

#include <fmt/format.h>

#include <cstddef>
#include <fstream>

namespace engine {

// A container sees its own group at the root, whatever /proc/self/cgroup calls it.
std::vector<std::string> PathsOf(const ControlGroupFile& file, const std::string& root) {
  std::vector<std::string> paths;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "0::/a/b" of version 2, "4:memory:/a/b" of 1
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool is_v2 = controllers == ",,";
    if (!is_v2 && controllers.find(fmt::format(",{},", file.controller)) == std::string::npos) continue;
    const std::string mount = is_v2 ? "/sys/fs/cgroup" : fmt::format("/sys/fs/cgroup/{}", file.controller);
    const std::string_view name = is_v2 ? file.v2 : file.v1;
    for (std::string group = line.substr(second + 1); group.size() > 1 && group.front() == '/';
         group.erase(group.rfind('/'))) {
      paths.push_back(fmt::format("{}{}/{}", mount, group, name));
    }
    paths.push_back(fmt::format("{}/{}", mount, name));
  }
  return paths;
}

}  // namespace engine
