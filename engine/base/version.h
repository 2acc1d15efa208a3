// The version of the program, in its output and in checkpoints.
#pragma once

#include <string>

namespace engine {

inline constexpr const char* kVersion = "0.1.0";

// "0.1.0+abcdef1", or "0.1.0" where it is not known of which commit the program was built.
std::string Version();

// Sets what Version says behind the plus: "abcdef1", "abcdef1-dirty". main() calls it first. The commit is
// passed in, not compiled into this library, so that a new commit recompiles one small file.
void SetCommit(const std::string& commit);

}  // namespace engine
