#include "engine/import/megatron_import.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include "engine/import/megatron_convert.h"
#include "engine/recipe/load.h"
#include "engine/recipe/rules.h"

namespace engine::import {
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
void PrintHeader(const recipe::Source& script, const MegatronArguments& arguments,
                 const MegatronOptions& options, Text* out) {
  std::string sets;
  for (const auto& [name, value] : options.variables) {
    sets += fmt::format(" --set {}={}", name, Shown(value, 200));
  }
  const MegatronWorld& world = arguments.command().world;
  const std::string name = std::filesystem::path(script.name()).filename().string();
  out->Line(
      fmt::format("# A Megatron-LM run of {} {}, from:", world.ranks, world.ranks == 1 ? "rank" : "ranks"));
  out->Line(fmt::format("#   engine import megatron {}{}", ShownPath(name), sets));
  if (!options.cluster.empty()) out->Line(fmt::format("extends = [{}]", recipe::QuoteToml(options.cluster)));
}

void PrintSettings(const MegatronSettings& settings, Text* out) {
  for (const recipe::TableDoc& table : recipe::Tables()) {
    bool open = false;
    for (const recipe::Field& field : recipe::Fields()) {
      if (field.table() != table.name) continue;
      const auto setting = settings.find(field.key);
      if (setting == settings.end()) continue;
      if (!open) {
        out->Line("");
        out->Line(fmt::format("[{}]", table.name));
      }
      open = true;
      out->Line(WithComment(fmt::format("{} = {}", field.name(), recipe::ToToml(setting->second.value)),
                            setting->second.comment),
                setting->second.flag);
    }
  }
}

// A flag that became no key.
struct Leftover {
  const MegatronArgument* argument = nullptr;
  MegatronRemark remark;
};

// In the order of the command; how many different flags it has.
std::vector<Leftover> Leftovers(const MegatronArguments& arguments, const MegatronRemarks& remarks,
                                std::size_t* flags) {
  std::vector<Leftover> leftovers;
  for (const MegatronArgument& argument : arguments.command().arguments) {
    const MegatronFlag& flag = *argument.flag;
    if (arguments.Find(flag.name) != &argument) continue;  // it is given again
    ++*flags;
    constexpr std::string_view kComment = "comment: ";
    if (const auto remark = remarks.find(flag.name); remark != remarks.end()) {
      leftovers.push_back({&argument, remark->second});
    } else if (flag.fate == MegatronFlag::Fate::kNote || flag.fate == MegatronFlag::Fate::kWarned) {
      leftovers.push_back({&argument, {flag.text, flag.fate == MegatronFlag::Fate::kWarned}});
    } else if (std::string_view(flag.text).starts_with(kComment)) {
      leftovers.push_back({&argument, {flag.text + kComment.size()}});
    }
  }
  return leftovers;
}

// Prints what was left out, grouped by reason.
void PrintLeftovers(const std::vector<Leftover>& leftovers, Text* out) {
  std::vector<std::pair<std::string, std::vector<std::string>>> reasons;
  for (const auto& [argument, remark] : leftovers) {
    auto known = reasons.begin();
    while (known != reasons.end() && known->first != remark.text) ++known;
    if (known == reasons.end()) known = reasons.insert(reasons.end(), {remark.text, {}});
    known->second.emplace_back(argument->flag->name);
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
    diagnostic.message =
        fmt::format("--set {} has no effect: the script does not read this variable", Shown(name));
    diagnostics->push_back(std::move(diagnostic));
  }
}

void Warn(const MegatronArgument& argument, std::string message, const recipe::Source& script,
          std::vector<Diagnostic>* diagnostics) {
  Diagnostic diagnostic = script.Error(MarkOf(script, argument.name), std::move(message));
  diagnostic.severity = Severity::kWarning;
  diagnostics->push_back(std::move(diagnostic));
}

void WarnOfRepeats(const MegatronArguments& arguments, const recipe::Source& script,
                   std::vector<Diagnostic>* diagnostics) {
  for (const MegatronArgument& argument : arguments.command().arguments) {
    if (arguments.Find(argument.flag->name) == &argument) continue;
    Warn(argument, fmt::format("{} is given again later; the last counts", argument.flag->name), script,
         diagnostics);
  }
}

// Warns of the flags without which the run is another one.
void WarnOfLeftovers(const std::vector<Leftover>& leftovers, const recipe::Source& script,
                     std::vector<Diagnostic>* diagnostics) {
  for (const auto& [argument, remark] : leftovers) {
    if (!remark.warns) continue;
    Warn(*argument, fmt::format("{} has no key: {}", argument->flag->name, remark.text), script, diagnostics);
  }
}

// "51 flags: 44 imported, 7 without a key (2 of them change the run)"
std::string Summary(std::size_t flags, const std::vector<Leftover>& leftovers) {
  std::string summary = fmt::format(
      "{}: {} imported", recipe::Counted(static_cast<std::int64_t>(flags), "flag"), flags - leftovers.size());
  if (leftovers.empty()) return summary;
  summary += fmt::format(", {} without a key", leftovers.size());
  const auto warns = [](const Leftover& leftover) { return leftover.remark.warns; };
  const std::ptrdiff_t changes = std::count_if(leftovers.begin(), leftovers.end(), warns);
  if (changes == 0) return summary;
  return summary + fmt::format(" ({} of them {} the run)", changes, changes == 1 ? "changes" : "change");
}

// What the rules of recipes find, at the flags that the lines come of.
void CheckRecipe(const Text& text, const MegatronArguments& arguments, const MegatronOptions& options,
                 const recipe::Source& script, std::vector<Diagnostic>* diagnostics) {
  std::string alone = text.text;
  if (!options.cluster.empty()) alone[alone.find("extends = ")] = '#';
  for (Diagnostic diagnostic : recipe::LoadText(alone, script.name()).diagnostics) {
    const auto line = static_cast<std::size_t>(diagnostic.span.line);
    const std::string flag = line >= 1 && line <= text.flags.size() ? text.flags[line - 1] : "";
    const recipe::Mark mark = arguments.PlaceOf(flag);
    diagnostic.span = script.Span(mark);
    diagnostic.source_line = script.Line(mark.line);
    diagnostics->push_back(std::move(diagnostic));
  }
}

}  // namespace

MegatronImport ImportMegatron(const recipe::Source& script, const MegatronOptions& options) {
  MegatronImport result;
  std::vector<Diagnostic>* diagnostics = &result.diagnostics;
  const ShellScript shell = ReadShell(script, SlurmVariables(script), options.variables, diagnostics);
  std::optional<MegatronCommand> command;
  if (result.ok()) command = FindMegatronCommand(script, shell, options.variables, diagnostics);
  if (command) {
    const MegatronArguments arguments(script, *command, diagnostics);
    CheckTaken(shell, arguments, options, diagnostics);
    WarnOfRepeats(arguments, script, diagnostics);
    CheckMegatronRules(arguments);
    MegatronRemarks remarks;
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
      std::size_t flags = 0;
      const std::vector<Leftover> leftovers = Leftovers(arguments, remarks, &flags);
      PrintLeftovers(leftovers, &text);
      WarnOfLeftovers(leftovers, script, diagnostics);
      result.summary = Summary(flags, leftovers);
      CheckRecipe(text, arguments, options, script, diagnostics);
      result.recipe = std::move(text.text);
    }
  }
  SortAndUnique(diagnostics);
  if (result.ok()) return result;
  result.recipe.clear();
  const auto is_error = [](const Diagnostic& diagnostic) { return diagnostic.severity == Severity::kError; };
  const std::ptrdiff_t errors = std::count_if(diagnostics->begin(), diagnostics->end(), is_error);
  result.summary = fmt::format("no recipe: {}", recipe::Counted(errors, "error"));
  return result;
}

}  // namespace engine::import
