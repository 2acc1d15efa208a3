// The program: options, and one file a subcommand.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>

#include "engine/cli/commands.h"
#include "engine/cli/version.h"

int main(int argc, char** argv) {
  constexpr int kUsageError = 2;
  CLI::App app("Trains transformer models from one declarative recipe.", "engine");
  app.set_version_flag("--version", engine::cli::VersionText());
  app.require_subcommand(1);
  int exit_code = 0;
  engine::cli::AddCheckCommand(app, &exit_code);
  engine::cli::AddExplainCommand(app, &exit_code);
  engine::cli::AddResolveCommand(app, &exit_code);
  engine::cli::AddSchemaCommand(app, &exit_code);
  engine::cli::AddPlanCommand(app, &exit_code);
  engine::cli::AddDiffCommand(app, &exit_code);
  engine::cli::AddSearchCommand(app, &exit_code);
  engine::cli::AddAblateCommand(app, &exit_code);
  engine::cli::AddRunCommand(app, &exit_code);
  engine::cli::AddGenerateCommand(app, &exit_code);
  engine::cli::AddDataCommand(app, &exit_code);
  engine::cli::AddCheckpointCommand(app, &exit_code);
  engine::cli::AddImportCommand(app, &exit_code);
  engine::cli::AddDoctorCommand(app, &exit_code);
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on file sizes is an error of the write, located there
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsageError;
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    std::fputs("engine: standard output could not be written\n", stderr);
    return 1;
  }
  return exit_code;
}
