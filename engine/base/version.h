// The version of the program, in its output and in checkpoints.
#pragma once

namespace engine {

inline constexpr const char* kVersion = "0.1.0";

}  // namespace engine
