// The commands and their options as data. Shell completion and the manual page are written from it, so that they
// cannot say other things than the program.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace engine::cli {

enum class ValueKind { kNone, kAny, kFile, kFolder, kWord, kKey, kSetting };

// An option, or an argument without a name.
struct OptionInfo {
  std::vector<std::string> names;  // "-h", "--help"; of an argument one without dashes
  std::string value;               // what the help calls its value: "FILE"; empty for a flag
  ValueKind kind = ValueKind::kNone;
  std::vector<std::string> words;  // of kWord
  std::string description;
  std::string initial;  // the default, if the help shows one
  bool required = false;
  bool repeated = false;
};

struct CommandInfo {
  std::string path;  // "engine data build"
  std::string description;
  std::string footer;  // exit codes
  std::vector<OptionInfo> options;
  std::vector<OptionInfo> arguments;
  std::vector<CommandInfo> commands;

  std::string name() const { return path.substr(path.rfind(' ') + 1); }
};

// Describes a whole app; its name begins all paths.
CommandInfo DescribeCommands(const CLI::App& app, const std::string& before = "");

// The command and all below it, each before its own.
std::vector<const CommandInfo*> AllCommands(const CommandInfo& root);

// The commands right below an app, in order.
std::vector<const CLI::App*> CommandsOf(const CLI::App& app);
std::vector<std::string> CommandNames(const CLI::App& app);
// The one of that name; null if there is none.
const CLI::App* FindCommand(const CLI::App& app, const std::string& name);

// The app that a command belongs to, at the top.
const CLI::App& RootOf(const CLI::App& command);

// Keys of a recipe for --set: "model.layers", in the order of the reference page.
std::vector<std::string> SettableKeys();

}  // namespace engine::cli
