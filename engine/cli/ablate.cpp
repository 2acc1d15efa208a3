// `engine ablate`: variants of a recipe, trained and compared.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "engine/base/print.h"
#include "engine/cli/check_plan.h"
#include "engine/cli/commands.h"
#include "engine/cli/device.h"
#include "engine/cli/process.h"
#include "engine/cli/recipe_options.h"
#include "engine/data/source.h"
#include "engine/model/load.h"
#include "engine/recipe/study.h"
#include "engine/study/study.h"
#include "engine/train/evaluation.h"

namespace engine::cli {
namespace {

struct AblateArguments {
  std::string file;
  std::string out;
  std::int64_t jobs = 1;
  bool check = false;
  DeviceChoice device;
  recipe::LoadOptions load;
};

// Of a variant whose runs have finished, the data may be gone.
bool HasFinished(const recipe::Study& study, const recipe::Variant& variant, const std::string& out) {
  return std::all_of(study.seeds.begin(), study.seeds.end(), [&](std::int64_t seed) {
    return study::ReadFinished(study::StudyRunFolder(out, variant.name, seed),
                               study::WithSeed(variant.recipe, seed))
        .has_value();
  });
}

// Every variant's plan, data and tasks, before anything is written or started. False, and told, where one is wrong.
bool Check(const recipe::Study& study, const std::string& out) {
  bool good = true;
  for (const recipe::Variant& variant : study.variants) {
    const std::vector<Diagnostic> diagnostics = CheckPlan(variant.recipe);
    bool sound = !HasErrors(diagnostics);
    if (!sound) PrintDiagnostics(diagnostics);  // warnings are `engine check`'s
    if (sound && !HasFinished(study, variant, out)) {
      absl::Status read = data::Source::Open(variant.recipe).status();
      if (read.ok()) read = train::TasksOf(variant.recipe).status();
      if (!read.ok()) Print(stderr, "{}\n", Message(read));
      sound = read.ok();
    }
    if (!sound) {
      Print(stderr, "{}:{}: variant '{}' cannot run\n", variant.span.file, variant.span.line, variant.name);
    }
    good = good && sound;
  }
  return good;
}

study::StudyOptions OptionsOf(const AblateArguments& arguments, const std::string& out) {
  study::StudyOptions options{.out = out, .jobs = arguments.jobs, .run_arguments = {}};
  options.run_arguments = {"--device", arguments.device.kind, "--threads",
                           fmt::format("{}", ThreadsOf(arguments.device, arguments.jobs))};
  return options;
}

int Ablate(const AblateArguments& arguments) {
  OutliveReaders();
  const recipe::StudyResult loaded = model::LoadStudy(arguments.file, arguments.load);
  PrintDiagnostics(loaded.diagnostics);
  if (!loaded.ok()) return kFailed;
  const std::string out =
      arguments.out.empty()
          ? (std::filesystem::path("runs") / "studies" / std::filesystem::path(arguments.file).stem())
                .string()
          : arguments.out;
  if (!Check(loaded.study, out)) return kFailed;
  const std::size_t runs = loaded.study.variants.size() * loaded.study.seeds.size();
  Print(stdout, "{}: {} variants × {} seeds = {} runs, all checked\n", loaded.study.path,
        loaded.study.variants.size(), loaded.study.seeds.size(), runs);
  if (arguments.check) return 0;
  const absl::StatusOr<study::StudyEnd> end =
      study::RunStudy(loaded.study, OptionsOf(arguments, out),
                      [&](const recipe::Recipe& recipe) { return ProfileOf(recipe, arguments.device); });
  if (!end.ok()) {
    Print(stderr, "engine ablate: {}\n", Message(end.status()));
    return kFailed;
  }
  return *end == study::StudyEnd::kFinished ? 0 : kFailed;
}

}  // namespace

void AddAblateCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "ablate", "Train the variants of a study and report what they came to; goes on where it stopped");
  const auto arguments = std::make_shared<AblateArguments>();
  command->add_option("study", arguments->file, "Study")->required()->type_name("FILE");
  command
      ->add_option(
          "--out", arguments->out,
          "Folder: variants/, results.json, report.html (default: runs/studies/ and the study's name)")
      ->type_name("DIR");
  command->add_option("--jobs", arguments->jobs, "Runs at once")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1024}))
      ->capture_default_str();
  command->add_flag("--check", arguments->check, "Check all variants and end");
  AddDeviceOptions(command, "runs", &arguments->device);
  AddLoadOptions(command, &arguments->load);
  command->footer(
      "Exit codes: 0 all runs finished; 1 the study is wrong, a run failed, or a signal stopped it; 2 wrong "
      "options");
  command->callback([arguments, exit_code] { *exit_code = Ablate(*arguments); });
}

}  // namespace engine::cli
