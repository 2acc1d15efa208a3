#include "engine/cli/app.h"

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/base/shown.h"
#include "engine/cli/color.h"
#include "engine/cli/command_tree.h"
#include "engine/cli/commands.h"
#include "engine/cli/device.h"
#include "engine/cli/process.h"
#include "engine/cli/version.h"

namespace engine::cli {
namespace {

void AddCommonOptions(CLI::App* app) {
  app->set_version_flag("-V,--version", VersionText, "Print the version and exit");
  for (CLI::App* command : app->get_subcommands([](const CLI::App*) { return true; })) {
    AddCommonOptions(command);
  }
  if (!CommandsOf(*app).empty()) return;
  app->add_option_function<std::string>(
         "--color", [](const std::string& when) { SetColor(when); },
         "Whether errors and warnings have colours: auto (on a terminal, without NO_COLOR), always, never")
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->type_name("WHEN");
}

std::vector<std::string> OptionNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

std::string Unknown(const std::string& command, const char* what, const std::string& word,
                    const std::vector<std::string>& known) {
  const std::string nearest = NearestWord(word, known);
  return fmt::format("{}: there is no {} '{}'{} (`{} --help` lists them)\n", command, what, word,
                     nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest), command);
}

// The first word that is neither a command nor an option where it stands; empty where there is none.
std::string FirstUnknown(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* at = &app;
  std::string command = app.get_name();
  for (std::size_t i = 0; i < words.size() && words[i] != "--"; ++i) {
    const std::string& word = words[i];
    if (word.size() > 1 && word[0] == '-') {
      const std::string name = word.substr(0, word.find('='));
      const CLI::Option* option = at->get_option_no_throw(name);
      if (option == nullptr) return Unknown(command, "option", name, OptionNames(*at));
      if (option->get_items_expected_max() > 0 && name == word) ++i;  // its value
    } else if (const std::vector<std::string> names = CommandNames(*at); !names.empty()) {
      at = FindCommand(*at, word);
      if (at == nullptr) return Unknown(command, "command", word, names);
      command += " " + word;
    }
  }
  return "";
}

// "engine data build": the command whose words the parser was reading.
std::string CommandUnderWay(const CLI::App& app) {
  std::string command = app.get_name();
  for (std::vector<CLI::App*> below = app.get_subcommands(); !below.empty();
       below = below.front()->get_subcommands())
    command += " " + below.front()->get_name();
  return command;
}

// The parser's error in the form of our own: the command, the fault, and where to read what would be right.
std::string WrongUse(const CLI::App& app, const CLI::ParseError& error) {
  constexpr std::size_t kMostBytes = 1000;
  const std::string command = CommandUnderWay(app);
  return fmt::format("{}: {} (`{} --help` says how it is used)\n", command, Shown(error.what(), kMostBytes),
                     command);
}

}  // namespace

void AddCommands(CLI::App* app, int* exit_code) {
  app->require_subcommand(1);
  AddCheckCommand(*app, exit_code);
  AddExplainCommand(*app, exit_code);
  AddResolveCommand(*app, exit_code);
  AddSchemaCommand(*app, exit_code);
  AddModulesCommand(*app, exit_code);
  AddPlanCommand(*app, exit_code);
  AddDiffCommand(*app, exit_code);
  AddSearchCommand(*app, exit_code);
  AddAblateCommand(*app, exit_code);
  AddRunCommand(*app, exit_code);
  AddWatchCommand(*app, exit_code);
  AddReportCommand(*app, exit_code);
  AddLaunchCommand(*app, exit_code);
  AddGenerateCommand(*app, exit_code);
  AddServeCommand(*app, exit_code);
  AddEvaluateCommand(*app, exit_code);
  AddDataCommand(*app, exit_code);
  AddTokenizeCommand(*app, exit_code);
  AddTokenizerCommand(*app, exit_code);
  AddCheckpointCommand(*app, exit_code);
  AddImportCommand(*app, exit_code);
  AddExportCommand(*app, exit_code);
  AddDoctorCommand(*app, exit_code);
  AddHelpCommand(*app, exit_code);
  AddCompletionCommand(*app, exit_code);
  AddManCommand(*app, exit_code);
  AddCommonOptions(app);
}

std::optional<int> Parse(CLI::App* app, int argc, char** argv) {
  try {
    app->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return WithOutputWritten(app->exit(error));
    const std::string unknown = FirstUnknown(*app, {argv + 1, argv + argc});
    std::fputs((unknown.empty() ? WrongUse(*app, error) : unknown).c_str(), stderr);
    return kUsage;
  }
  return std::nullopt;
}

}  // namespace engine::cli
