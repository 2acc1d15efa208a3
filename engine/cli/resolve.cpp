// `engine resolve`: what a recipe comes to, and where each value comes from.
#include <cstdio>
#include <memory>
#include <string>

#include "engine/cli/commands.h"
#include "engine/cli/recipe_options.h"
#include "engine/model/load.h"
#include "engine/recipe/print.h"

namespace engine::cli {
namespace {

struct ResolveArguments {
  std::string file;
  std::string format = "toml";
  recipe::LoadOptions load;
};

int Resolve(const ResolveArguments& arguments) {
  const recipe::LoadResult result = model::Load(arguments.file, arguments.load);
  PrintDiagnostics(result.diagnostics);
  if (!result.ok()) return 1;
  const std::string text =
      arguments.format == "json" ? recipe::ToJson(result.recipe) : recipe::ToToml(result.recipe);
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace

void AddResolveCommand(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("resolve", "Print the whole resolved recipe with the origin of each value");
  const auto arguments = std::make_shared<ResolveArguments>();
  command->add_option("file", arguments->file, "Recipe")->required()->type_name("FILE");
  command->add_option("--format", arguments->format, "Output: toml or json")
      ->check(CLI::IsMember({"toml", "json"}))
      ->capture_default_str();
  AddLoadOptions(command, &arguments->load);
  command->footer("Exit codes: 0 printed; 1 the recipe is wrong; 2 wrong options");
  command->callback([arguments, exit_code] { *exit_code = Resolve(*arguments); });
}

}  // namespace engine::cli
