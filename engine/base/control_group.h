// The control groups (cgroups v2, v1) of this process: files in which a limit on it may stand.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace engine {

// The name that a file of a group has in each version; of version 1 with the controller, "memory", whose folder it lies in.
struct ControlGroupFile {
  std::string_view controller;
  std::string_view v2, v1;
};

// Paths below `root`, the root of the file system, of that file in the group of this process and in those above it, whether they are
// there or not.
std::vector<std::string> PathsOf(const ControlGroupFile& file, const std::string& root);

}  // namespace engine
