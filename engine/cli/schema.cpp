// `engine schema`: the keys of a recipe, for editors and for people.
#include <cstdio>
#include <memory>
#include <string>

#include "engine/cli/commands.h"
#include "engine/model/reference.h"
#include "engine/recipe/reference.h"

namespace engine::cli {

void AddSchemaCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("schema", "Print the JSON Schema of recipes");
  const auto reference = std::make_shared<bool>(false);
  const auto study = std::make_shared<bool>(false);
  CLI::Option* page =
      command->add_flag("--reference", *reference, "Print the reference page (Markdown) instead");
  command->add_flag("--study", *study, "Print the JSON Schema of studies instead")->excludes(page);
  command->callback([reference, study, exit_code] {
    const std::string text = *reference ? recipe::ReferencePage()
                             : *study   ? model::StudySchema()
                                        : model::RecipeSchema();
    std::fputs(text.c_str(), stdout);
    *exit_code = 0;
  });
}

}  // namespace engine::cli
