// What `engine --version` prints.
#pragma once

#include <string>

namespace engine::cli {

std::string VersionText();  // "engine 0.1.0 (CPU executor; CUDA: not compiled)"

}  // namespace engine::cli
