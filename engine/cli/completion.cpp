#include "engine/cli/completion.h"

#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>
#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace engine::cli {
namespace {

std::vector<std::string> NamesOf(const CommandInfo& command) {
  std::vector<std::string> names;
  for (const CommandInfo& below : command.commands) names.push_back(below.name());
  return names;
}

std::vector<std::string> OptionNamesOf(const CommandInfo& command) {
  std::vector<std::string> names;
  for (const OptionInfo& option : command.options) {
    names.insert(names.end(), option.names.begin(), option.names.end());
  }
  return names;
}

// In single quotes of a shell that knows no escapes there.
std::string Quoted(const std::string& text) {
  return "'" + absl::StrReplaceAll(text, {{"'", "'\\''"}}) + "'";
}

std::string FirstSentence(const std::string& text) {
  return text.substr(0, std::min(text.find(';'), text.find(" (")));
}

// -------------------------------------------------------------------------------------------------------
// bash

// The lines that complete one value, whose beginning is $current.
std::string BashValue(const OptionInfo& option) {
  switch (option.kind) {
    case ValueKind::kWord:
      return fmt::format("COMPREPLY=($(compgen -W '{}' -- \"$current\"))", absl::StrJoin(option.words, " "));
    case ValueKind::kFolder:
      return "compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- \"$current\")";
    case ValueKind::kFile:
      return "compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- \"$current\")";
    case ValueKind::kSetting:
      return "compopt -o nospace; COMPREPLY=($(compgen -W \"$keys\" -S = -- \"$current\"))";
    case ValueKind::kKey:
      return "COMPREPLY=($(compgen -W \"$keys\" -- \"$current\"))";
    default:
      return ":";
  }
}

std::string BashCase(const std::vector<std::string>& patterns, const std::string& body) {
  std::vector<std::string> quoted;
  quoted.reserve(patterns.size());
  for (const std::string& pattern : patterns) quoted.push_back("\"" + pattern + "\"");
  return fmt::format("    {})\n      {} ;;\n", absl::StrJoin(quoted, " | "), body);
}

// -------------------------------------------------------------------------------------------------------
// zsh

std::string ZshFunction(const CommandInfo& command) {
  return "_" + absl::StrReplaceAll(command.path, {{" ", "_"}});
}

// ":FILE:_files", after an option's or an argument's description.
std::string ZshValue(const OptionInfo& option) {
  const std::string before = ":" + absl::StrReplaceAll(option.value, {{":", "\\:"}}) + ":";
  switch (option.kind) {
    case ValueKind::kNone:
      return "";
    case ValueKind::kWord:
      return fmt::format("{}({})", before, absl::StrJoin(option.words, " "));
    case ValueKind::kFolder:
      return before + "_files -/";
    case ValueKind::kFile:
      return before + "_files";
    case ValueKind::kSetting:
      return before + "_engine_settings";
    case ValueKind::kKey:
      return before + "_engine_keys";
    case ValueKind::kAny:
      return before + " ";
  }
  return "";
}

std::string ZshDescription(const OptionInfo& option) {
  return absl::StrReplaceAll(option.description, {{"\\", "\\\\"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}});
}

std::string ZshCommand(const CommandInfo& command) {
  std::string text = ZshFunction(command) + "() {\n";
  if (!command.commands.empty()) text += "  local curcontext=$curcontext state line\n";
  text += command.commands.empty() ? "  _arguments -s" : "  _arguments -C -s";
  for (const OptionInfo& option : command.options) {
    const std::string again = option.repeated ? "*" : "(" + absl::StrJoin(option.names, " ") + ")";
    for (const std::string& name : option.names) {
      text += " \\\n    " + Quoted(again + name + "[" + ZshDescription(option) + "]" + ZshValue(option));
    }
  }
  for (const OptionInfo& argument : command.arguments) {
    text += " \\\n    " + Quoted((argument.repeated ? "*" : "") + ZshValue(argument));
  }
  if (command.commands.empty()) return text + "\n}\n\n";
  text +=
      " \\\n    ': :->command' '*:: :->rest'\n  case $state in\n    command)\n      local -a commands=(\n";
  for (const CommandInfo& below : command.commands) {
    text += "        " + Quoted(below.name() + ":" + absl::StrReplaceAll(below.description, {{":", "\\:"}})) +
            "\n";
  }
  text += "      )\n      _describe command commands ;;\n    rest)\n      case $words[1] in\n";
  for (const CommandInfo& below : command.commands) {
    text += fmt::format("        {}) {} ;;\n", below.name(), ZshFunction(below));
  }
  return text + "      esac ;;\n  esac\n}\n\n";
}

// -------------------------------------------------------------------------------------------------------
// fish

// Fish knows two escapes in single quotes.
std::string FishQuoted(const std::string& text) {
  return "'" + absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}}) + "'";
}

std::string FishValue(const OptionInfo& option) {
  switch (option.kind) {
    case ValueKind::kNone:
      return "";
    case ValueKind::kWord:
      return " -x -a " + FishQuoted(absl::StrJoin(option.words, " "));
    case ValueKind::kFolder:
      return " -x -a '(__fish_complete_directories)'";
    case ValueKind::kFile:
      return " -r -F";
    case ValueKind::kSetting:
      return " -x -a '(__engine_keys)='";
    case ValueKind::kKey:
      return " -x -a '(__engine_keys)'";
    case ValueKind::kAny:
      return " -x";
  }
  return "";
}

std::string FishCommand(const CommandInfo& command) {
  const std::string at = fmt::format("complete -c engine -n 'test (__engine_path) = \"{}\"'", command.path);
  std::string text;
  for (const CommandInfo& below : command.commands) {
    text += fmt::format("{} -a {} -d {}\n", at, below.name(), FishQuoted(below.description));
  }
  for (const OptionInfo& option : command.options) {
    text += at;
    for (const std::string& name : option.names) {
      text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    }
    text += fmt::format("{} -d {}\n", FishValue(option), FishQuoted(FirstSentence(option.description)));
  }
  for (const OptionInfo& argument : command.arguments) {
    const std::string value = argument.kind == ValueKind::kFile ? " -F" : FishValue(argument);
    if (argument.kind != ValueKind::kAny) text += at + value + "\n";
  }
  return text;
}

}  // namespace

std::string BashCompletion(const CommandInfo& root) {
  std::vector<std::string> paths;
  std::string values;
  std::string words;
  for (const CommandInfo* command : AllCommands(root)) {
    if (command != &root) paths.push_back("\"" + command->path + "\"");
    for (const OptionInfo& option : command->options) {
      if (option.kind == ValueKind::kNone) continue;
      std::vector<std::string> places;
      for (const std::string& name : option.names) places.push_back(command->path + " " + name);
      values += BashCase(places, BashValue(option) + "; return");
    }
    std::string argument = command->commands.empty()
                               ? ":"
                               : fmt::format("COMPREPLY=($(compgen -W '{}' -- \"$current\"))",
                                             absl::StrJoin(NamesOf(*command), " "));
    if (!command->arguments.empty()) argument = BashValue(command->arguments.front());
    words += BashCase({command->path}, fmt::format("options='{}'\n      if [[ $current != -* ]]; then {}; fi",
                                                   absl::StrJoin(OptionNamesOf(*command), " "), argument));
  }
  return fmt::format(R"(# bash completion of engine, written by `engine completion bash`
_engine() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}} path=engine options='' i
  local keys='{}'
  # --option=value is three words; so is section.key=value, whose values nobody knows.
  if [[ $current == '=' ]]; then
    current=''
    [[ $previous == -* ]] || {{ COMPREPLY=(); return; }}
  elif [[ $previous == '=' ]]; then
    previous=${{COMP_WORDS[COMP_CWORD - 2]}}
    [[ $previous == -* ]] || {{ COMPREPLY=(); return; }}
  fi
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case "$path ${{COMP_WORDS[i]}}" in
      {}) path="$path ${{COMP_WORDS[i]}}" ;;
    esac
  done
  COMPREPLY=()
  case "$path $previous" in
{}  esac
  case "$path" in
{}  esac
  if [[ $current == -* ]]; then COMPREPLY=($(compgen -W "$options" -- "$current")); fi
}}
complete -F _engine engine
)",
                     absl::StrJoin(SettableKeys(), " "), absl::StrJoin(paths, " | "), values, words);
}

std::string ZshCompletion(const CommandInfo& root) {
  std::string text = fmt::format(R"(#compdef engine
# zsh completion of engine, written by `engine completion zsh`

_engine_keys() {{
  local -a keys=({})
  compadd "$@" -a keys
}}

_engine_settings() {{
  _engine_keys "$@" -S =
}}

)",
                                 absl::StrJoin(SettableKeys(), " "));
  for (const CommandInfo* command : AllCommands(root)) text += ZshCommand(*command);
  return text + "_engine \"$@\"\n";
}

std::string FishCompletion(const CommandInfo& root) {
  std::vector<std::string> paths;
  std::string commands;
  for (const CommandInfo* command : AllCommands(root)) {
    if (command != &root) paths.push_back("'" + command->path + "'");
    commands += FishCommand(*command);
  }
  return fmt::format(R"(# fish completion of engine, written by `engine completion fish`
function __engine_path
    set -l path engine
    set -l words (commandline -opc)
    for word in $words[2..-1]
        if contains -- "$path $word" {}
            set path "$path $word"
        end
    end
    echo $path
end

function __engine_keys
    printf '%s\n' {}
end

complete -c engine -f
)",
                     absl::StrJoin(paths, " "), absl::StrJoin(SettableKeys(), " ")) +
         commands;
}

}  // namespace engine::cli
