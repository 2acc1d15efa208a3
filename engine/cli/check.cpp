// `engine check`: are these recipes right?
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/cli/check_plan.h"
#include "engine/cli/commands.h"
#include "engine/cli/recipe_options.h"
#include "engine/recipe/load.h"

namespace engine::cli {
namespace {

struct CheckArguments {
  std::vector<std::string> files;
  std::string format = "text";
  recipe::LoadOptions load;
};

std::vector<Diagnostic> CheckFile(const std::string& file, const recipe::LoadOptions& options) {
  recipe::LoadResult result = recipe::Load(file, options);
  if (!result.ok()) return std::move(result.diagnostics);
  for (Diagnostic& diagnostic : CheckPlan(result.recipe)) result.diagnostics.push_back(std::move(diagnostic));
  SortAndUnique(&result.diagnostics);
  return std::move(result.diagnostics);
}

const char* SeverityName(Severity severity) {
  return severity == Severity::kError ? "error" : severity == Severity::kWarning ? "warning" : "note";
}

nlohmann::ordered_json ToJson(const Diagnostic& d) {
  return {{"severity", SeverityName(d.severity)},
          {"file", d.span.file},
          {"line", d.span.line},
          {"column", d.span.column},
          {"length", d.span.length},
          {"message", d.message},
          {"hint", d.hint},
          {"source_line", d.source_line}};
}

int CheckAsJson(const CheckArguments& arguments) {
  bool all_ok = true;
  nlohmann::ordered_json files = nlohmann::ordered_json::array();
  for (const std::string& file : arguments.files) {
    const std::vector<Diagnostic> diagnostics = CheckFile(file, arguments.load);
    nlohmann::ordered_json listed = nlohmann::ordered_json::array();
    for (const Diagnostic& diagnostic : diagnostics) listed.push_back(ToJson(diagnostic));
    const bool ok = !HasErrors(diagnostics);
    all_ok = all_ok && ok;
    files.push_back({{"file", file}, {"ok", ok}, {"diagnostics", listed}});
  }
  const nlohmann::ordered_json report = {{"ok", all_ok}, {"files", files}};
  // A file name or a clipped source line need not be UTF-8.
  fmt::print("{}\n", report.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  return all_ok ? 0 : 1;
}

int CheckAsText(const CheckArguments& arguments) {
  std::size_t failed = 0;
  for (const std::string& file : arguments.files) {
    const std::vector<Diagnostic> diagnostics = CheckFile(file, arguments.load);
    for (const Diagnostic& diagnostic : diagnostics) fmt::print("{}", Format(diagnostic));
    if (HasErrors(diagnostics)) {
      ++failed;
    } else {
      fmt::print("{}: ok\n", file);
    }
  }
  const std::size_t count = arguments.files.size();
  fmt::print("{} {} checked, {} with errors\n", count, count == 1 ? "recipe" : "recipes", failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace

void AddCheckCommand(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("check", "Check recipes and their plans; exit code 1 if one has errors");
  const auto arguments = std::make_shared<CheckArguments>();
  command->add_option("files", arguments->files, "Recipes")->required()->type_name("FILE");
  command->add_option("--format", arguments->format, "Output: text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  AddLoadOptions(command, &arguments->load);
  command->callback([arguments, exit_code] {
    *exit_code = arguments->format == "json" ? CheckAsJson(*arguments) : CheckAsText(*arguments);
  });
}

}  // namespace engine::cli
