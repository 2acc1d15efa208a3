// `engine modules`: what the steps of a model can be.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/print.h"
#include "engine/cli/commands.h"
#include "engine/model/module.h"
#include "engine/model/reference.h"

namespace engine::cli {
namespace {

struct ModulesArguments {
  std::string name;
  bool page = false;
};

int Modules(const ModulesArguments& arguments) {
  if (arguments.name.empty()) {
    std::fputs((arguments.page ? model::ModulesPage() : model::ModulesList()).c_str(), stdout);
    return 0;
  }
  if (const model::ModuleDef* module = model::FindModule(arguments.name); module != nullptr) {
    std::fputs(model::ModuleText(*module).c_str(), stdout);
    return 0;
  }
  std::vector<std::string> names;
  for (const auto* list : {&model::Structures(), &model::Modules()}) {
    for (const model::ModuleDef* known : *list) names.emplace_back(known->name);
  }
  const std::string nearest = NearestWord(arguments.name, names);
  Print(stderr, "error: there is no module '{}'{}\n", Shown(arguments.name),
        nearest.empty() ? fmt::format("; there are {}", fmt::join(names, ", "))
                        : fmt::format("; did you mean '{}'?", nearest));
  return 1;
}

}  // namespace

void AddModulesCommand(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("modules", "List the modules that a model's steps can be, or describe one");
  const auto arguments = std::make_shared<ModulesArguments>();
  command->add_option("name", arguments->name, "Module")->type_name("NAME");
  command->add_flag("--page", arguments->page, "Print the reference page (Markdown) instead");
  command->footer("Exit codes: 0 printed; 1 there is no such module; 2 wrong options");
  command->callback([arguments, exit_code] { *exit_code = Modules(*arguments); });
}

}  // namespace engine::cli
