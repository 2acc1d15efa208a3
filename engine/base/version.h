// The version of the program, in its output and in checkpoints.
#pragma once

#include <string>

namespace engine {

inline constexpr const char* kVersion = "0.1.0";

// "0.1.0+abcdef1", or "0.1.0" where it is not known of which commit the program was built.
std::string Version();

// What Version says behind the plus: "abcdef1", "abcdef1-dirty". Of the main program, before anything else;
// so a new commit compiles one small file, and links nothing but the program.
void SetCommit(const std::string& commit);

}  // namespace engine
