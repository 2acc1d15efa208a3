#include "engine/cli/version.h"

namespace engine::cli {

std::string VersionText() { return "engine 0.1.0 (CPU executor; CUDA: not compiled)"; }

}  // namespace engine::cli
