// Runs the program itself, as a user would.
#pragma once

#include <doctest/doctest.h>
#include <stdio.h>
#include <sys/wait.h>

#include <string>

namespace engine::cli {

struct ProgramResult {
  int exit_code = 0;
  std::string output;  // of both streams
};

inline ProgramResult RunShell(const std::string& command) {
  ProgramResult result;
  std::FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  char buffer[4096];
  for (std::size_t got = 0; (got = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;)
    result.output.append(buffer, got);
  const int status = ::pclose(pipe);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

// `arguments` as in a shell; `environment` as "NAME=value".
inline ProgramResult RunProgram(const std::string& arguments, const std::string& environment = "") {
  return RunShell(environment + " " + ENGINE_BINARY + " " + arguments);
}

inline bool Contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  MESSAGE("no '" << part << "' in: " << text);
  return false;
}

}  // namespace engine::cli
