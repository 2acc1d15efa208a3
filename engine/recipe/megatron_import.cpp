#include "engine/recipe/megatron_import.h"

#include <fmt/format.h>

#include <filesystem>
#include <set>
#include <utility>

#include "engine/recipe/load.h"
#include "engine/recipe/megatron_convert.h"

namespace engine::recipe {
namespace {

constexpr std::size_t kCommentColumn = 34;  // where comments begin, beside all but long values
constexpr std::size_t kWidth = 120;

struct Text {
  std::string text;
  std::vector<std::string> flags;  // by line: the flag that it comes of; empty: none

  void Line(const std::string& content, const std::string& flag = "") {
    text += content + "\n";
    flags.push_back(flag);
  }
};

std::string WithComment(std::string setting, const std::string& comment) {
  if (comment.empty()) return setting;
  if (setting.size() < kCommentColumn) setting.resize(kCommentColumn, ' ');
  return fmt::format("{}  # {}", setting, comment);
}

// The extends line and all before it.
void PrintHeader(const Source& script, const MegatronArguments& arguments, const MegatronOptions& options,
                 Text* out) {
  std::string sets;
  for (const auto& [name, value] : options.variables) {
    sets += fmt::format(" --set {}={}", name, Shown(value, 200));
  }
  const MegatronWorld& world = arguments.command().world;
  const std::string name = std::filesystem::path(script.name()).filename().string();
  out->Line(
      fmt::format("# A Megatron-LM run of {} {}, from:", world.ranks, world.ranks == 1 ? "rank" : "ranks"));
  out->Line(fmt::format("#   engine import megatron {}{}", ShownPath(name), sets));
  if (!options.cluster.empty()) out->Line(fmt::format("extends = [{}]", QuoteToml(options.cluster)));
}

void PrintSettings(const MegatronSettings& settings, Text* out) {
  for (const TableDoc& table : Tables()) {
    bool open = false;
    for (const Field& field : Fields()) {
      if (field.table() != table.name) continue;
      const auto setting = settings.find(field.key);
      if (setting == settings.end()) continue;
      if (!open) {
        out->Line("");
        out->Line(fmt::format("[{}]", table.name));
      }
      open = true;
      out->Line(WithComment(fmt::format("{} = {}", field.name(), ToToml(setting->second.value)),
                            setting->second.comment),
                setting->second.flag);
    }
  }
}

// Flags that became no key, those of one reason together.
void PrintRemarks(const MegatronArguments& arguments, const std::map<std::string, std::string>& remarks,
                  Text* out) {
  std::vector<std::pair<std::string, std::vector<std::string>>> reasons;
  std::set<std::string> seen;
  for (const MegatronArgument& argument : arguments.command().arguments) {
    const std::string name = argument.flag->name;
    if (!seen.insert(name).second) continue;
    std::string reason;
    if (const auto remark = remarks.find(name); remark != remarks.end()) {
      reason = remark->second;
    } else if (argument.flag->fate == MegatronFlag::Fate::kNote) {
      reason = argument.flag->text;
    } else if (std::string_view(argument.flag->text).rfind("comment: ", 0) == 0) {
      reason = std::string_view(argument.flag->text).substr(9);
    }
    if (reason.empty()) continue;
    auto known = reasons.begin();
    while (known != reasons.end() && known->first != reason) ++known;
    if (known == reasons.end()) known = reasons.insert(reasons.end(), {reason, {}});
    known->second.push_back(name);
  }
  if (reasons.empty()) return;
  out->Line("");
  out->Line("# Flags without a key of their own:");
  for (const auto& [reason, names] : reasons) {
    std::string line = "#";
    for (const std::string& name : names) {
      if (line.size() + name.size() + 3 > kWidth) {
        out->Line(line);
        line = "#";
      }
      line += fmt::format(" {}{}", name, &name == &names.back() ? ":" : ",");
    }
    if (line.size() + 1 + reason.size() > kWidth) {
      out->Line(line);
      line = "#    ";
    }
    out->Line(fmt::format("{} {}", line, reason));
  }
}

// Variables that the user gave and the script never asked for: a slip of the pen.
void CheckTaken(const ShellScript& shell, const MegatronArguments& arguments, const MegatronOptions& options,
                std::vector<Diagnostic>* diagnostics) {
  for (const auto& [name, value] : options.variables) {
    if (shell.taken.contains(name)) continue;
    if (name == "WORLD_SIZE" && arguments.command().world.launcher == "WORLD_SIZE") continue;
    Diagnostic diagnostic;
    diagnostic.span = {"--set", 0, 0, 1};
    diagnostic.message = fmt::format("the script does not take {} from outside", Shown(name));
    diagnostic.hint = shell.variables.contains(name) ? "it sets it itself" : "";
    diagnostics->push_back(std::move(diagnostic));
  }
}

void WarnOfRepeats(const MegatronArguments& arguments, const Source& script,
                   std::vector<Diagnostic>* diagnostics) {
  for (const MegatronArgument& argument : arguments.command().arguments) {
    if (arguments.Find(argument.flag->name) == &argument) continue;
    Diagnostic diagnostic =
        script.Error(MarkOf(script, argument.name),
                     fmt::format("{} is given again later; the last counts", argument.flag->name));
    diagnostic.severity = Severity::kWarning;
    diagnostics->push_back(std::move(diagnostic));
  }
}

// What the rules of recipes find, at the flags that the lines come of.
void CheckRecipe(const Text& text, const MegatronArguments& arguments, const MegatronOptions& options,
                 const Source& script, std::vector<Diagnostic>* diagnostics) {
  std::string alone = text.text;
  if (!options.cluster.empty()) alone[alone.find("extends = ")] = '#';
  for (Diagnostic diagnostic : LoadText(alone, script.name()).diagnostics) {
    const auto line = static_cast<std::size_t>(diagnostic.span.line);
    const std::string flag = line >= 1 && line <= text.flags.size() ? text.flags[line - 1] : "";
    const Mark mark = arguments.PlaceOf(flag);
    diagnostic.span = script.Span(mark);
    diagnostic.source_line = script.Line(mark.line);
    diagnostics->push_back(std::move(diagnostic));
  }
}

}  // namespace

MegatronImport ImportMegatron(const Source& script, const MegatronOptions& options) {
  MegatronImport result;
  std::vector<Diagnostic>* diagnostics = &result.diagnostics;
  std::map<std::string, std::string> outside = SlurmVariables(script);
  for (const auto& [name, value] : options.variables) outside[name] = value;
  const ShellScript shell = ReadShell(script, outside, diagnostics);
  std::optional<MegatronCommand> command;
  if (result.ok()) command = FindMegatronCommand(script, shell, options.variables, diagnostics);
  if (command) {
    const MegatronArguments arguments(script, *command, diagnostics);
    CheckTaken(shell, arguments, options, diagnostics);
    WarnOfRepeats(arguments, script, diagnostics);
    CheckMegatronRules(arguments);
    std::map<std::string, std::string> remarks;
    MegatronSettings settings;
    if (result.ok()) settings = ConvertMegatron(arguments, &remarks);
    if (options.cluster.empty()) {
      settings["cluster.device"] = {std::string("h100"),
                                    "assumed, and its memory not checked: --cluster FILE", ""};
    }
    if (result.ok()) {
      Text text;
      PrintHeader(script, arguments, options, &text);
      PrintSettings(settings, &text);
      PrintRemarks(arguments, remarks, &text);
      CheckRecipe(text, arguments, options, script, diagnostics);
      result.recipe = std::move(text.text);
    }
  }
  SortAndUnique(diagnostics);
  if (!result.ok()) result.recipe.clear();
  return result;
}

}  // namespace engine::recipe
