// Runs one subcommand inside the test, with its standard output caught.
#pragma once

#include <stdio.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <string>
#include <vector>

namespace engine::cli {

struct CommandResult {
  int exit_code = 0;  // 2: CLI11 refused the arguments
  std::string output;
};

inline CommandResult RunCommand(void (*add)(CLI::App&, int*), std::vector<std::string> arguments) {
  CommandResult result;
  CLI::App app("", "engine");
  add(app, &result.exit_code);
  std::fflush(stdout);
  const int saved = ::dup(STDOUT_FILENO);
  std::FILE* caught = std::tmpfile();
  ::dup2(::fileno(caught), STDOUT_FILENO);
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    result.exit_code = error.get_exit_code() == 0 ? 0 : 2;
    if (result.exit_code == 0) app.exit(error);
  }
  std::fflush(stdout);
  std::cout.flush();
  ::dup2(saved, STDOUT_FILENO);
  ::close(saved);
  std::rewind(caught);
  char buffer[4096];
  for (std::size_t got = 0; (got = std::fread(buffer, 1, sizeof(buffer), caught)) > 0;) {
    result.output.append(buffer, got);
  }
  std::fclose(caught);
  return result;
}

inline std::string SourcePath(const std::string& path) { return std::string(ENGINE_SOURCE_DIR) + "/" + path; }

}  // namespace engine::cli
