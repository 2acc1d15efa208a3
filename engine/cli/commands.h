// The subcommands of the program, one file each. Each Add function declares its options on the app and sets
// `*exit_code` (0 success, 1 failure, others in device.h; CLI11 itself answers wrong usage) when it is the
// one that runs.
#pragma once

#include <CLI/CLI.hpp>

namespace engine::cli {

void AddCheckCommand(CLI::App& app, int* exit_code);
void AddExplainCommand(CLI::App& app, int* exit_code);
void AddResolveCommand(CLI::App& app, int* exit_code);
void AddSchemaCommand(CLI::App& app, int* exit_code);
void AddModulesCommand(CLI::App& app, int* exit_code);
void AddPlanCommand(CLI::App& app, int* exit_code);
void AddDiffCommand(CLI::App& app, int* exit_code);
void AddSearchCommand(CLI::App& app, int* exit_code);
void AddAblateCommand(CLI::App& app, int* exit_code);
void AddRunCommand(CLI::App& app, int* exit_code);
// Of `engine run` as a rank whose run has ended because of another rank: where its supervisor is asked for a place in another attempt
// (launch/next_place.h). −1: this process is to end.
int TakeNextPlace();
void AddWatchCommand(CLI::App& app, int* exit_code);
void AddReportCommand(CLI::App& app, int* exit_code);
void AddLaunchCommand(CLI::App& app, int* exit_code);
void AddGenerateCommand(CLI::App& app, int* exit_code);
void AddServeCommand(CLI::App& app, int* exit_code);
void AddEvaluateCommand(CLI::App& app, int* exit_code);
void AddDataCommand(CLI::App& app, int* exit_code);
void AddTokenizeCommand(CLI::App& app, int* exit_code);
void AddTokenizerCommand(CLI::App& app, int* exit_code);
void AddCheckpointCommand(CLI::App& app, int* exit_code);
void AddImportCommand(CLI::App& app, int* exit_code);
void AddExportCommand(CLI::App& app, int* exit_code);
void AddDoctorCommand(CLI::App& app, int* exit_code);
void AddHelpCommand(CLI::App& app, int* exit_code);
void AddCompletionCommand(CLI::App& app, int* exit_code);
void AddManCommand(CLI::App& app, int* exit_code);

}  // namespace engine::cli
