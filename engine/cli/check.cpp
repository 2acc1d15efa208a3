// `engine check`: are these recipes right, and wise?
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/core_limit.h"
#include "engine/base/parallel.h"
#include "engine/cli/check_plan.h"
#include "engine/cli/check_report.h"
#include "engine/cli/color.h"
#include "engine/cli/commands.h"
#include "engine/cli/recipe_options.h"
#include "engine/model/load.h"
#include "engine/recipe/study.h"

namespace engine::cli {
namespace {

struct CheckArguments {
  std::vector<std::string> files;
  std::string format = "text";
  bool strict = false;
  recipe::LoadOptions load;
};

// A variant's plan; what it does wrong is in the base, too, where the variant's own lines do not say it.
void CheckVariant(const recipe::Variant& variant, std::vector<Diagnostic>* diagnostics) {
  const std::vector<Diagnostic> found = CheckPlan(variant.recipe);
  diagnostics->insert(diagnostics->end(), found.begin(), found.end());
  if (!HasErrors(found)) return;
  diagnostics->push_back({Severity::kError, variant.span,
                          fmt::format("variant '{}' cannot run", variant.name), "", "", recipe::kBadStudy});
}

std::vector<Diagnostic> CheckStudy(const std::string& file, const recipe::LoadOptions& options) {
  recipe::StudyResult result = model::LoadStudy(file, options);
  if (!result.ok()) return std::move(result.diagnostics);
  for (const recipe::Variant& variant : result.study.variants) CheckVariant(variant, &result.diagnostics);
  SortAndUnique(&result.diagnostics);
  return std::move(result.diagnostics);
}

std::vector<Diagnostic> CheckFile(const std::string& file, const recipe::LoadOptions& options) {
  recipe::LoadResult result = model::Load(file, options);
  if (!result.ok()) return std::move(result.diagnostics);
  for (Diagnostic& diagnostic : CheckPlan(result.recipe)) result.diagnostics.push_back(std::move(diagnostic));
  SortAndUnique(&result.diagnostics);
  return std::move(result.diagnostics);
}

int Check(const CheckArguments& arguments) {
  CheckReport report{.files = std::vector<CheckedFile>(arguments.files.size()),
                     .strict = arguments.strict,
                     .colors = UsesColor(stdout)};
  ParallelPieces(CoresOfProcess(), arguments.files.size(), 1, [&](std::size_t i, std::size_t) {
    const std::string& file = arguments.files[i];
    const bool is_study = recipe::IsStudy(file, arguments.load);
    report.files[i] = {file, is_study ? CheckStudy(file, arguments.load) : CheckFile(file, arguments.load),
                       is_study};
  });
  const std::string text = ReportText(report, arguments.format);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return report.Passes() ? 0 : 1;
}

}  // namespace

void AddCheckCommand(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("check", "Check recipes, and the variants of studies, and their plans");
  const auto arguments = std::make_shared<CheckArguments>();
  command->add_option("files", arguments->files, "Recipes and studies")->required()->type_name("FILE");
  command->add_option("--format", arguments->format, "Form of the output")
      ->check(CLI::IsMember(ReportFormats()))
      ->capture_default_str();
  command->add_flag("--strict", arguments->strict, "Warnings fail too");
  AddLoadOptions(command, &arguments->load);
  command->footer("Exit codes: 0 no errors (with --strict, no warnings); 1 findings; 2 wrong options");
  command->callback([arguments, exit_code] { *exit_code = Check(*arguments); });
}

}  // namespace engine::cli
