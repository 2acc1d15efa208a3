// The name of the machine that the process runs on.
#pragma once

#include <string>

namespace engine {

// As gethostname(2) gives it; of a longer name than that call's HOST_NAME_MAX the beginning.
std::string HostName();

}  // namespace engine
