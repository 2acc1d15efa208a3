// `engine run`: train what a recipe says.
#include "engine/train/run.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>

#include "engine/cli/commands.h"
#include "engine/cli/cpu_device.h"
#include "engine/cli/recipe_options.h"
#include "engine/recipe/load.h"

namespace engine::cli {
namespace {

struct RunArguments {
  std::string file;
  std::string out;
  bool fresh = false;
  int threads = 0;
  recipe::LoadOptions load;
};

int RunRecipe(const RunArguments& arguments) {
  const recipe::LoadResult loaded = recipe::Load(arguments.file, arguments.load);
  PrintDiagnostics(loaded.diagnostics);
  if (!loaded.ok()) return 1;
  train::RunOptions options{.out = arguments.out, .fresh = arguments.fresh};
  if (options.out.empty()) {
    options.out = (std::filesystem::path("runs") / std::filesystem::path(arguments.file).stem()).string();
  }
  const train::Device device = MakeCpuDevice(arguments.threads);
  const absl::Status status = train::Run(loaded.recipe, options, device);
  if (status.ok()) return 0;
  // What is the recipe's fault is located already.
  const std::string text = Message(status);
  fmt::print(stderr, "{}{}\n", text.find(": error: ") == std::string::npos ? "engine run: " : "", text);
  return 1;
}

}  // namespace

void AddRunCommand(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("run", "Train what a recipe says; resumes from the newest checkpoint of --out");
  const auto arguments = std::make_shared<RunArguments>();
  command->add_option("recipe", arguments->file, "Recipe")->required()->type_name("FILE");
  command
      ->add_option("--out", arguments->out,
                   "Folder of the run: metrics.jsonl, resolved.toml, plan.json, checkpoints/ (default: "
                   "runs/ and the recipe's name)")
      ->type_name("DIR");
  command->add_flag("--fresh", arguments->fresh,
                    "Refuse a folder that already holds a run, instead of resuming it");
  command->add_option("--threads", arguments->threads, "Threads of all ranks together (default: all cores)")
      ->check(CLI::Range(1, 4096));
  AddLoadOptions(command, &arguments->load);
  command->callback([arguments, exit_code] { *exit_code = RunRecipe(*arguments); });
}

}  // namespace engine::cli
