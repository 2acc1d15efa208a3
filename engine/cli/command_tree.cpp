#include "engine/cli/command_tree.h"

#include <string_view>

#include "engine/recipe/fields.h"

namespace engine::cli {
namespace {

// CLI11 has a set of words as "NAME:{a,b}".
std::vector<std::string> WordsOf(std::string_view type) {
  std::vector<std::string> words;
  const std::size_t open = type.find('{');
  if (open == std::string_view::npos) return words;
  type = type.substr(open + 1, type.find('}') - open - 1);
  while (!type.empty()) {
    const std::size_t end = std::min(type.find(','), type.size());
    words.emplace_back(type.substr(0, end));
    type.remove_prefix(std::min(end + 1, type.size()));
  }
  return words;
}

ValueKind KindOf(const OptionInfo& info) {
  if (info.value.empty()) return ValueKind::kNone;
  if (!info.words.empty()) return ValueKind::kWord;
  const auto has = [&](const char* part) { return info.value.find(part) != std::string::npos; };
  if (info.value == "SECTION.KEY=VALUE") return ValueKind::kSetting;
  if (info.value == "SECTION.KEY") return ValueKind::kKey;
  if (info.value == "DIR") return ValueKind::kFolder;
  return has("FILE") || has("PATH") || has("PREFIX") || has(".toml") ? ValueKind::kFile : ValueKind::kAny;
}

// A type's own name. CLI11 puts what a validator checks behind it: "INT:INT in [1 - 16]". A name may have a
// colon itself: "HOST:PORT".
std::string ValueName(const std::string& type) {
  for (const char* check : {":{", ":INT in ", ":UINT in ", ":FLOAT in ", ":POSITIVE", ":NONNEGATIVE"}) {
    if (const std::size_t at = type.find(check); at != std::string::npos) return type.substr(0, at);
  }
  return type;
}

OptionInfo Describe(const CLI::Option& option) {
  OptionInfo info;
  for (const std::string& name : option.get_snames()) info.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) info.names.push_back("--" + name);
  if (option.get_positional()) info.names = {option.get_name(true)};
  if (option.get_items_expected_max() > 0) {
    const std::string type = option.get_type_name();
    info.value = ValueName(type);
    info.words = WordsOf(type);
  }
  info.kind = KindOf(info);
  info.description = option.get_description();
  info.initial = option.get_default_str();
  info.required = option.get_required();
  info.repeated = option.get_items_expected_max() > 1 ||
                  option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll;
  return info;
}

}  // namespace

CommandInfo DescribeCommands(const CLI::App& app, const std::string& before) {
  CommandInfo info{.path = before + app.get_name(),
                   .description = app.get_description(),
                   .footer = app.get_footer(),
                   .options = {},
                   .arguments = {},
                   .commands = {}};
  for (const CLI::Option* option : app.get_options()) {
    (option->get_positional() ? info.arguments : info.options).push_back(Describe(*option));
  }
  for (const CLI::App* command : CommandsOf(app)) {
    info.commands.push_back(DescribeCommands(*command, info.path + " "));
  }
  return info;
}

std::vector<const CommandInfo*> AllCommands(const CommandInfo& root) {
  std::vector<const CommandInfo*> all = {&root};
  for (const CommandInfo& command : root.commands) {
    const std::vector<const CommandInfo*> below = AllCommands(command);
    all.insert(all.end(), below.begin(), below.end());
  }
  return all;
}

std::vector<const CLI::App*> CommandsOf(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

std::vector<std::string> CommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : CommandsOf(app)) names.push_back(command->get_name());
  return names;
}

const CLI::App* FindCommand(const CLI::App& app, const std::string& name) {
  for (const CLI::App* command : CommandsOf(app)) {
    if (command->get_name() == name) return command;
  }
  return nullptr;
}

const CLI::App& RootOf(const CLI::App& command) {
  const CLI::App* app = &command;
  while (app->get_parent() != nullptr) app = app->get_parent();
  return *app;
}

std::vector<std::string> SettableKeys() {
  std::vector<std::string> keys;
  for (const recipe::Field& field : recipe::Fields()) keys.push_back(field.key);
  return keys;
}

}  // namespace engine::cli
