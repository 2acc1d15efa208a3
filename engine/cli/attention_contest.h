// `engine doctor --attention SHAPE`.
#pragma once

#include <string>
#include <vector>

namespace engine::cli {

struct ContestArguments {
  std::vector<std::string> shapes;
  bool reference = false;  // the reference kernels take part where others can, too
  bool json = false;
};

// Prints the contest of each shape. An exit code (device.h).
int PrintAttentionContests(const ContestArguments& arguments);

}  // namespace engine::cli
