// `engine search`: the layout of a recipe that is fastest, or needs least memory, on so many devices.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "engine/base/parallel.h"
#include "engine/cli/check_plan.h"
#include "engine/cli/commands.h"
#include "engine/cli/device.h"
#include "engine/cli/recipe_options.h"
#include "engine/recipe/load.h"
#include "engine/train/search.h"
#include "engine/train/write_file.h"

namespace engine::cli {
namespace {

namespace fs = std::filesystem;

struct SearchArguments {
  std::string file;
  std::string objective = "time";
  std::string out;
  train::SearchOptions options;
  recipe::LoadOptions load;
};

// A cluster of so many devices: whole nodes. Error: they do not fill nodes.
absl::Status SetWorld(std::int64_t world, recipe::Recipe* recipe) {
  recipe::Cluster& cluster = recipe->cluster;
  const std::int64_t each = cluster.devices_per_node;
  if (each > 0 && world > each && world % each != 0)
    return InvalidArgument("--world {}: nodes of {} have {} devices each", world, cluster.name, each);
  if (cluster.nodes > 0 && each > 0) {
    cluster.nodes = (world + each - 1) / each;
    if (world < each) cluster.devices_per_node = world;
  }
  return absl::OkStatus();
}

int WriteFound(const SearchArguments& arguments, const recipe::Recipe& changed) {
  const recipe::LoadResult alone = recipe::Load(arguments.file, {.sets = {}, .root = arguments.load.root});
  std::error_code error;
  const fs::path folder = fs::absolute(arguments.out, error).parent_path();
  const std::string base = fs::relative(fs::absolute(arguments.file, error), folder, error).string();
  const std::string text = train::FoundRecipe(alone.recipe, changed, base.empty() ? arguments.file : base);
  const absl::Status written = train::WriteFile(arguments.out, text);
  if (written.ok()) return 0;
  fmt::print(stderr, "engine search: {}\n", Message(written));
  return 1;
}

int Search(const SearchArguments& arguments) {
  for (const std::string& key : arguments.options.fixed) {
    const std::vector<std::string>& known = train::SearchedKeys();
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    fmt::print(stderr, "engine search: --fix {}: search varies {}; everything else is fixed\n", key,
               fmt::join(known, ", "));
    return 2;
  }
  recipe::LoadResult loaded = recipe::Load(arguments.file, arguments.load);
  PrintDiagnostics(loaded.diagnostics);
  if (!loaded.ok()) return 1;
  recipe::Recipe& recipe = loaded.recipe;
  train::SearchOptions options = arguments.options;
  options.objective = arguments.objective == "memory" ? train::SearchOptions::Objective::kMemory
                                                      : train::SearchOptions::Objective::kTime;
  options.threads = HardwareThreads();
  if (options.world > 0) {
    if (const absl::Status fits = SetWorld(options.world, &recipe); !fits.ok()) {
      fmt::print(stderr, "engine search: {}\n", Message(fits));
      return 2;
    }
  }
  const absl::StatusOr<train::SearchResult> result =
      train::Search(recipe, {.profile = ProfileOf(recipe)}, options);
  if (!result.ok()) {
    fmt::print(stderr, "engine search: {}\n", Message(result.status()));
    return 1;
  }
  const std::string text = ToText(*result, recipe);
  std::fputs(text.c_str(), stdout);
  if (result->best.empty()) return 1;
  if (arguments.out.empty()) return 0;
  train::SetLayout(result->best.front().layout, &recipe);
  const bool list = std::find(options.fixed.begin(), options.fixed.end(), "parallelism.layers_per_stage") !=
                    options.fixed.end();
  if (!list) recipe.parallelism.layers_per_stage.clear();
  return WriteFound(arguments, recipe);
}

}  // namespace

void AddSearchCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "search",
      "Find the layout of a recipe, its micro-batch and recomputation, by exact memory and predicted time");
  const auto arguments = std::make_shared<SearchArguments>();
  command->add_option("file", arguments->file, "Recipe")->required()->type_name("FILE");
  command->add_option("--world", arguments->options.world, "Devices; the recipe's own if not given")
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  command
      ->add_option("--objective", arguments->objective,
                   "What is to be least: time of an iteration, or memory")
      ->check(CLI::IsMember({"time", "memory"}))
      ->capture_default_str();
  command
      ->add_option("--fix", arguments->options.fixed,
                   "A key that keeps the recipe's value, such as parallelism.tp; repeatable")
      ->type_name("SECTION.KEY")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  command->add_option("--out", arguments->out, "Write the best as a recipe that extends this one")
      ->type_name("PATH");
  command->add_option("--show", arguments->options.shown, "Layouts that are shown")->capture_default_str();
  AddLoadOptions(command, &arguments->load);
  command->footer("Exit codes: 0 found; 1 no layout fits, or the recipe is wrong; 2 wrong options");
  command->callback([arguments, exit_code] { *exit_code = Search(*arguments); });
}

}  // namespace engine::cli
