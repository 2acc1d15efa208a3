// What `engine --version` prints.
#pragma once

#include <string>

namespace engine::cli {

// "engine 0.1.0 (CPU executor; CUDA: not compiled)", or with which CUDA it was compiled and the devices that
// are here.
std::string VersionText();

}  // namespace engine::cli
