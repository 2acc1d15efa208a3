// `engine help`, `engine completion` and `engine man`: what the program says of itself.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/base/print.h"
#include "engine/base/version.h"
#include "engine/cli/command_tree.h"
#include "engine/cli/commands.h"
#include "engine/cli/completion.h"
#include "engine/cli/device.h"
#include "engine/cli/man.h"

namespace engine::cli {
namespace {

int Help(const CLI::App& root, const std::vector<std::string>& words) {
  const CLI::App* at = &root;
  std::string before;
  for (const std::string& word : words) {
    before += (before.empty() ? "" : " ") + at->get_name();
    const CLI::App* next = FindCommand(*at, word);
    if (next == nullptr) {
      const std::string nearest = NearestWord(word, CommandNames(*at));
      Print(stderr, "engine help: there is no command '{} {}'{}\n", before, word,
            nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest));
      return kUsage;
    }
    at = next;
  }
  // App::help of one that has parsed a command is that command's.
  const std::string name = before.empty() ? at->get_name() : before + " " + at->get_name();
  std::fputs(at->get_formatter()->make_help(at, name, CLI::AppFormatMode::Normal).c_str(), stdout);
  return 0;
}

std::string Completion(const CommandInfo& root, const std::string& shell) {
  return shell == "bash" ? BashCompletion(root) : shell == "zsh" ? ZshCompletion(root) : FishCompletion(root);
}

}  // namespace

void AddHelpCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("help", "Print what a command does and takes");
  const auto words = std::make_shared<std::vector<std::string>>();
  command->add_option("command", *words, "Command; without one, the list of all")->type_name("COMMAND");
  command->callback([command, words, exit_code] { *exit_code = Help(RootOf(*command), *words); });
}

void AddCompletionCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("completion", "Print the script that completes commands in a shell");
  const auto shell = std::make_shared<std::string>();
  command->add_option("shell", *shell, "Shell")
      ->required()
      ->type_name("SHELL")
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->footer(
      "bash: source <(engine completion bash)\n"
      "zsh:  engine completion zsh > FOLDER/_engine, a folder of $fpath\n"
      "fish: engine completion fish > ~/.config/fish/completions/engine.fish\n"
      "`cmake --install` puts them where the shells look.");
  command->callback([command, shell, exit_code] {
    std::fputs(Completion(DescribeCommands(RootOf(*command)), *shell).c_str(), stdout);
    *exit_code = 0;
  });
}

void AddManCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("man", "Print the manual page: engine man | man -l -");
  command->callback([command, exit_code] {
    std::fputs(ManualPage(DescribeCommands(RootOf(*command)), Version()).c_str(), stdout);
    *exit_code = 0;
  });
}

}  // namespace engine::cli
