// `engine launch`: the file by which a scheduler runs a recipe.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/print.h"
#include "engine/base/status.h"
#include "engine/base/write_file.h"
#include "engine/cli/commands.h"
#include "engine/cli/recipe_options.h"
#include "engine/jobs/job_file.h"
#include "engine/model/load.h"

namespace engine::cli {
namespace {

struct LaunchArguments {
  std::string scheduler;
  std::string file;
  std::string out;
  bool dry_run = false;
  recipe::LoadOptions load;
};

int WriteJob(const LaunchArguments& arguments) {
  const recipe::LoadResult result = model::Load(arguments.file, arguments.load);
  PrintDiagnostics(result.diagnostics);
  if (!result.ok()) return 1;
  const absl::StatusOr<jobs::Job> job = jobs::JobOf(result.recipe, arguments.scheduler);
  if (!job.ok()) {
    Print(stderr, "{}\n", Message(job.status()));
    return 1;
  }
  if (arguments.dry_run) {
    Print(stdout, "{}", jobs::Summary(result.recipe, *job, arguments.scheduler));
    return 0;
  }
  const std::string text = jobs::JobFile(result.recipe, *job, arguments.scheduler);
  if (arguments.out.empty()) {
    Print(stdout, "{}", text);
    return 0;
  }
  const absl::Status written = WriteFile(arguments.out, text);
  if (!written.ok()) Print(stderr, "engine launch: {}\n", Message(written));
  return written.ok() ? 0 : 1;
}

}  // namespace

void AddLaunchCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "launch", "Write the file by which a scheduler runs a recipe: of SLURM, or of Kubernetes");
  const auto arguments = std::make_shared<LaunchArguments>();
  const std::span<const std::string> schedulers = jobs::Schedulers();
  command
      ->add_option("scheduler", arguments->scheduler,
                   "slurm, pytorchjob, jobset, trainjob, mpijob or hyperpod")
      ->required()
      ->check(CLI::IsMember(std::vector<std::string>(schedulers.begin(), schedulers.end())))
      ->type_name("SCHEDULER");
  command->add_option("file", arguments->file, "Recipe; its [cluster] and [launch] say what is asked for")
      ->required()
      ->type_name("FILE");
  command->add_option("-o,--output", arguments->out, "The file; default: standard output")->type_name("FILE");
  command->add_flag("--dry-run", arguments->dry_run,
                    "Check, say what the scheduler would be asked for, and write nothing");
  AddLoadOptions(command, &arguments->load);
  command->footer(
      "Exit codes: 0 written; 1 the recipe is wrong, or lacks what the scheduler must know; 2 wrong options");
  command->callback([arguments, exit_code] { *exit_code = WriteJob(*arguments); });
}

}  // namespace engine::cli
