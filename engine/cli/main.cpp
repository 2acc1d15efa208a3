// The program: options (app.h), and one file a subcommand.
#include <CLI/CLI.hpp>
#include <csignal>
#include <optional>

#include "engine/base/version.h"
#include "engine/cli/app.h"
#include "engine/cli/process.h"

namespace engine {
const char* BuildCommit();  // of the file that tools/commit.cmake writes at each build
}

int main(int argc, char** argv) {
  engine::cli::OpenStandardStreams();
  engine::cli::RestoreHangUp();
  engine::cli::EndWhereMemoryEnds(argc > 1 ? argv[1] : "");
  engine::SetCommit(engine::BuildCommit());
  CLI::App app("Trains transformer models from one declarative recipe.", "engine");
  int exit_code = 0;
  engine::cli::AddCommands(&app, &exit_code);
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on file sizes is an error of the write, located there
  if (const std::optional<int> end = engine::cli::Parse(&app, argc, argv)) return *end;
  return engine::cli::WithOutputWritten(exit_code);
}
