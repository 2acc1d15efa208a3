#include "engine/base/host_name.h"

#include <unistd.h>

#include <array>
#include <climits>

namespace engine {

std::string HostName() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace engine
