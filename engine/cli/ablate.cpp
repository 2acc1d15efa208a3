// `engine ablate`: variants of a recipe, trained and compared.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/diagnostic.h"
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

// A warning or note of `engine check`, and the variants that have it.
struct Remark {
  Diagnostic diagnostic;
  std::string text;  // by which two are the same
  std::vector<std::string> variants;
};

void AddRemarks(const std::string& variant, const std::vector<Diagnostic>& diagnostics,
                std::vector<Remark>* remarks) {
  for (const Diagnostic& diagnostic : diagnostics) {
    const std::string text = Format(diagnostic);
    auto same =
        std::find_if(remarks->begin(), remarks->end(), [&](const Remark& r) { return r.text == text; });
    if (same == remarks->end()) same = remarks->insert(same, {diagnostic, text, {}});
    if (same->variants.empty() || same->variants.back() != variant) same->variants.push_back(variant);
  }
}

// Prints the remarks, each with the names of its variants, unless all variants of the study have it.
void PrintRemarks(const std::vector<Remark>& remarks, std::size_t variants) {
  std::vector<Diagnostic> named;
  for (const Remark& remark : remarks) {
    Diagnostic& diagnostic = named.emplace_back(remark.diagnostic);
    if (remark.variants.size() == variants) continue;
    diagnostic.message += fmt::format(" ({} '{}')", remark.variants.size() == 1 ? "variant" : "variants",
                                      fmt::join(remark.variants, "', '"));
  }
  SortAndUnique(&named);
  PrintDiagnostics(named);
}

// Every variant's plan, data and tasks, before anything is written or started. False, and told, where one is wrong.
// Warnings and notes on variants that can run are told where `remarks` is asked for.
bool Check(const recipe::Study& study, const std::string& out, bool remarks) {
  bool good = true;
  std::vector<Remark> found;
  for (const recipe::Variant& variant : study.variants) {
    const std::vector<Diagnostic> diagnostics = CheckPlan(variant.recipe);
    bool sound = !HasErrors(diagnostics);
    if (sound) {
      AddRemarks(variant.name, diagnostics, &found);
    } else {
      PrintDiagnostics(diagnostics);
    }
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
  if (remarks) PrintRemarks(found, study.variants.size());
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
  if (!Check(loaded.study, out, arguments.check)) return kFailed;
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
  command->add_flag("--check", arguments->check,
                    "Check all variants, with warnings and notes on their plans, and end");
  AddDeviceOptions(command, "runs", &arguments->device);
  AddLoadOptions(command, &arguments->load);
  command->footer(
      "Exit codes: 0 all runs finished; 1 the study is wrong, a run failed, or a signal stopped it; 2 wrong "
      "options");
  command->callback([arguments, exit_code] { *exit_code = Ablate(*arguments); });
}

}  // namespace engine::cli
