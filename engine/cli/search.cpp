// `engine search`: the layout of a recipe that is fastest, or needs least memory, on so many devices.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "engine/base/core_limit.h"
#include "engine/base/parallel.h"
#include "engine/base/print.h"
#include "engine/base/units.h"
#include "engine/base/write_file.h"
#include "engine/cli/check_plan.h"
#include "engine/cli/checks.h"
#include "engine/cli/commands.h"
#include "engine/cli/device.h"
#include "engine/cli/progress_line.h"
#include "engine/cli/recipe_options.h"
#include "engine/cli/stop_signals.h"
#include "engine/model/load.h"
#include "engine/search/report.h"
#include "engine/search/search.h"

namespace engine::cli {
namespace {

namespace fs = std::filesystem;

struct SearchArguments {
  std::string file;
  std::string objective = "time";
  std::string out;
  double memory_percent = 95;
  bool progress = false;
  bool json = false;
  search::SearchOptions options;
  recipe::LoadOptions load;
};

// A cluster of so many devices: whole nodes. Error: they do not fill nodes.
absl::Status SetWorld(std::int64_t world, recipe::Recipe* recipe) {
  if (world == 0) return absl::OkStatus();  // the recipe's own
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

std::string ProgressText(const search::SearchProgress& progress) {
  std::string text =
      fmt::format("{} of {} layouts", WithThousands(progress.looked_at), WithThousands(progress.layouts));
  if (progress.compiled > 0) text += fmt::format(", {} plans compared", WithThousands(progress.compiled));
  if (progress.best != nullptr) {
    text += fmt::format("; best so far {:.3f} s, {}: {}", progress.best_s, FormatBytes(progress.best_bytes),
                        progress.best->ToString());
  }
  return text;
}

// What `engine check` would say of the best.
std::vector<std::string> NotesOf(const recipe::Recipe& found) {
  std::vector<std::string> notes;
  for (const Diagnostic& diagnostic : CheckPlan(found)) {
    if (diagnostic.severity == Severity::kWarning)
      notes.push_back(fmt::format("{}: {}", diagnostic.code, diagnostic.message));
  }
  return notes;
}

int WriteFound(const SearchArguments& arguments, const recipe::Recipe& changed) {
  const recipe::LoadResult alone = model::Load(arguments.file, {.sets = {}, .root = arguments.load.root});
  std::error_code error;
  const fs::path folder = fs::absolute(arguments.out, error).parent_path();
  const std::string base = fs::relative(fs::absolute(arguments.file, error), folder, error).string();
  const std::string text = search::FoundRecipe(alone.recipe, changed, base.empty() ? arguments.file : base);
  const absl::Status written = WriteFile(arguments.out, text);
  if (written.ok()) return 0;
  Print(stderr, "engine search: {}\n", Message(written));
  return 1;
}

absl::StatusOr<search::SearchResult> RunSearch(const SearchArguments& arguments,
                                               const recipe::Recipe& recipe) {
  search::SearchOptions options = arguments.options;
  options.objective = arguments.objective == "memory" ? search::SearchOptions::Objective::kMemory
                                                      : search::SearchOptions::Objective::kTime;
  options.memory_share = arguments.memory_percent / 100;
  if (options.threads == 0) options.threads = CoresOfProcess();
  options.stopped = [] { return StopSignals::Came() != 0; };
  ProgressLine line;
  if (arguments.progress || ::isatty(STDERR_FILENO) == 1)
    options.progress = [&](const search::SearchProgress& progress) { line.Show(ProgressText(progress)); };
  return search::Search(recipe, {.profile = ProfileOf(recipe)}, options);
}

void PrintFound(const SearchArguments& arguments, const search::SearchResult& result,
                const recipe::Recipe& recipe) {
  std::vector<std::string> notes;
  if (!result.best.empty() && !result.interrupted) {
    recipe::Recipe best = recipe;
    search::SetLayout(result.best.front().layout, &best);
    notes = NotesOf(best);
  }
  if (arguments.json) {
    nlohmann::ordered_json json = search::ToJson(result, recipe);
    json["notes"] = notes;
    Print(stdout, "{}\n", json.dump(2));
    return;
  }
  std::string text = ToText(result, recipe);
  for (const std::string& note : notes) text += fmt::format("note: {}\n", note);
  std::fputs(text.c_str(), stdout);
}

int Search(const SearchArguments& arguments) {
  for (const std::string& key : arguments.options.fixed) {
    const std::vector<std::string>& known = search::SearchedKeys();
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    Print(stderr, "engine search: --fix {}: search varies {}; everything else is fixed\n", key,
          fmt::join(known, ", "));
    return 2;
  }
  recipe::LoadResult loaded = model::Load(arguments.file, arguments.load);
  PrintDiagnostics(loaded.diagnostics);
  if (!loaded.ok()) return 1;
  recipe::Recipe& recipe = loaded.recipe;
  if (const absl::Status fits = SetWorld(arguments.options.world, &recipe); !fits.ok()) {
    Print(stderr, "engine search: {}\n", Message(fits));
    return 2;
  }
  const StopSignals signals;
  const absl::StatusOr<search::SearchResult> result = RunSearch(arguments, recipe);
  if (!result.ok()) {
    Print(stderr, "engine search: {}\n", Message(result.status()));
    return 1;
  }
  if (result->interrupted) Print(stderr, "engine search: interrupted; this is what was found\n");
  PrintFound(arguments, *result, recipe);
  const int code = result->interrupted ? 128 + StopSignals::Came() : result->best.empty() ? 1 : 0;
  if (arguments.out.empty() || result->best.empty()) return code;
  search::SetLayout(result->best.front().layout, &recipe);
  const int written = WriteFound(arguments, recipe);
  return written != 0 ? written : code;
}

}  // namespace

void AddSearchCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "search",
      "Find the layout of a recipe, its micro-batch and recomputation, by exact memory and predicted time");
  const auto arguments = std::make_shared<SearchArguments>();
  command->add_option("file", arguments->file, "Recipe")->required()->type_name("FILE");
  command->add_option("--world", arguments->options.world, "Devices; the recipe's own if not given")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000}))
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
  command->add_option("--show", arguments->options.shown, "Layouts that are shown")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000}))
      ->type_name("N")
      ->capture_default_str();
  command
      ->add_option("--memory-limit", arguments->memory_percent,
                   "Per cent of a device's memory that may be taken; above 95 `engine check` warns")
      ->check(CLI::Range(1.0, 100.0))
      ->check(CheckIsNumber)
      ->type_name("PERCENT")
      ->capture_default_str();
  arguments->options.threads = 0;
  command
      ->add_option("--threads", arguments->options.threads,
                   "Threads; as many as there are cores if not given")
      ->check(CLI::Range(1, 4096))
      ->type_name("N");
  command->add_flag("--json", arguments->json, "Print what was found as JSON");
  command->add_flag("--progress", arguments->progress,
                    "Say each second on standard error how far it is, even where that is no terminal");
  AddLoadOptions(command, &arguments->load);
  command->footer(
      "Layouts are ranked by estimates. The best by these are compiled, and compared by the predictions of\n"
      "whole plans, until no estimate that is left could win. On one core a search takes some 6 s for\n"
      "8 devices and 23 s for 1024 (docs/scale.md). Ctrl-C ends it with what it has found.\n"
      "Exit codes: 0 found; 1 no layout fits, or the recipe is wrong; 2 wrong options; 130 interrupted by\n"
      "Ctrl-C, 143 by SIGTERM");
  command->callback([arguments, exit_code] { *exit_code = Search(*arguments); });
}

}  // namespace engine::cli
