// `engine resolve`: what a recipe comes to, and where each value comes from.
#include <cstdio>
#include <memory>
#include <string>

#include "engine/cli/commands.h"
#include "engine/cli/recipe_options.h"
#include "engine/model/load.h"
#include "engine/recipe/expand.h"
#include "engine/recipe/print.h"
#include "engine/recipe/text.h"

namespace engine::cli {
namespace {

struct ResolveArguments {
  std::string file;
  std::string format = "toml";
  bool expand = false;
  recipe::LoadOptions load;
};

int Resolve(const ResolveArguments& arguments) {
  const recipe::LoadResult result = model::Load(arguments.file, arguments.load);
  PrintDiagnostics(result.diagnostics);
  if (!result.ok()) return 1;
  if (arguments.expand) {
    const std::string expanded =
        result.recipe.is_text()
            ? "[model]\n" + recipe::ModelLines(*result.recipe.text) + recipe::TextTables(*result.recipe.text)
            : recipe::Expand(result.recipe);
    std::fputs(expanded.c_str(), stdout);
    return 0;
  }
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
  command->add_flag("--expand", arguments->expand,
                    "Print the model alone, as the steps that its keys are short for");
  AddLoadOptions(command, &arguments->load);
  command->footer("Exit codes: 0 printed; 1 the recipe is wrong; 2 wrong options");
  command->callback([arguments, exit_code] { *exit_code = Resolve(*arguments); });
}

}  // namespace engine::cli
