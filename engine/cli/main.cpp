// The program: options (app.h), and one file a subcommand.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/version.h"
#include "engine/cli/app.h"
#include "engine/cli/commands.h"
#include "engine/cli/process.h"
#include "engine/launch/next_place.h"

namespace engine {
const char* BuildCommit();  // of the file that tools/commit.cmake writes at each build
}

namespace {

int RunCommand(std::vector<std::string> arguments) {
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  CLI::App app("Trains transformer models from one declarative recipe.", "engine");
  int exit_code = 0;
  engine::cli::AddCommands(&app, &exit_code);
  if (const std::optional<int> end =
          engine::cli::Parse(&app, static_cast<int>(arguments.size()), argv.data()))
    return *end;
  return engine::cli::WithOutputWritten(exit_code);
}

}  // namespace

int main(int argc, char** argv) {
  engine::cli::OpenStandardStreams();
  engine::cli::RestoreHangUp();
  engine::cli::TakeSignalsElsewhere();
  engine::cli::EndWhereMemoryEnds(argc > 1 ? argv[1] : "");
  engine::SetCommit(engine::BuildCommit());
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on file sizes is an error of the write, located there
  std::vector<std::string> arguments(argv, argv + argc);
  while (true) {
    const int code = RunCommand(std::move(arguments));
    const int next_place = engine::cli::TakeNextPlace();
    if (next_place < 0) return code;
    std::optional<std::vector<std::string>> next = engine::launch::AwaitNextPlace(next_place);
    if (!next) std::quick_exit(code);  // without what the libraries of a GPU do at the end of a program
    arguments = *std::move(next);
  }
}
