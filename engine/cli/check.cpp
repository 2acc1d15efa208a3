// `engine check`: are these recipes right, and wise?
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/parallel.h"
#include "engine/cli/check_plan.h"
#include "engine/cli/check_report.h"
#include "engine/cli/commands.h"
#include "engine/cli/recipe_options.h"
#include "engine/recipe/load.h"

namespace engine::cli {
namespace {

struct CheckArguments {
  std::vector<std::string> files;
  std::string format = "text";
  bool strict = false;
  recipe::LoadOptions load;
};

std::vector<Diagnostic> CheckFile(const std::string& file, const recipe::LoadOptions& options) {
  recipe::LoadResult result = recipe::Load(file, options);
  if (!result.ok()) return std::move(result.diagnostics);
  for (Diagnostic& diagnostic : CheckPlan(result.recipe)) result.diagnostics.push_back(std::move(diagnostic));
  SortAndUnique(&result.diagnostics);
  return std::move(result.diagnostics);
}

int Check(const CheckArguments& arguments) {
  CheckReport report{.files = std::vector<CheckedFile>(arguments.files.size()), .strict = arguments.strict};
  ParallelPieces(HardwareThreads(), arguments.files.size(), 1, [&](std::size_t i, std::size_t) {
    report.files[i] = {arguments.files[i], CheckFile(arguments.files[i], arguments.load)};
  });
  const std::string text = ReportText(report, arguments.format);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return report.Passes() ? 0 : 1;
}

}  // namespace

void AddCheckCommand(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("check", "Check recipes and their plans; exit code 1 if one has errors");
  const auto arguments = std::make_shared<CheckArguments>();
  command->add_option("files", arguments->files, "Recipes")->required()->type_name("FILE");
  command->add_option("--format", arguments->format, "Form of the output")
      ->check(CLI::IsMember(ReportFormats()))
      ->capture_default_str();
  command->add_flag("--strict", arguments->strict, "Warnings fail too");
  AddLoadOptions(command, &arguments->load);
  command->callback([arguments, exit_code] { *exit_code = Check(*arguments); });
}

}  // namespace engine::cli
