#include "engine/import/megatron_import.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include "engine/import/megatron_convert.h"
#include "engine/import/megatron_model_text.h"
#include "engine/recipe/load.h"
#include "engine/recipe/rules.h"

namespace engine::import {
namespace {

constexpr std::size_t kCommentColumn = 34;  // where comments begin, beside all but long values
constexpr std::size_t kWidth = 120;
constexpr const char* kModelTable = "model";
constexpr const char* kFamilyKey = "model.family";  // what the keys of a decoder depend on

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

// Names, with commas between and a colon behind, in as many lines of a comment as they take. The last one is not printed.
std::string WithNames(std::string line, const std::vector<std::string>& names, Text* out) {
  for (const std::string& name : names) {
    if (line.size() + name.size() + 3 > kWidth) {
      out->Line(line);
      line = "#";
    }
    line += fmt::format(" {}{}", name, &name == &names.back() ? ":" : ",");
  }
  return line;
}

// Lines of text, all of which come of one flag.
void PrintLines(std::string_view lines, const std::string& flag, Text* out) {
  while (!lines.empty()) {
    const std::size_t end = std::min(lines.find('\n'), lines.size());
    out->Line(std::string(lines.substr(0, end)), flag);
    lines.remove_prefix(std::min(end + 1, lines.size()));
  }
}

// The model as steps, in place of a decoder's keys.
struct Steps {
  MegatronModelText text;
  std::vector<std::string> flags;  // that no key says
};

void PrintSteps(const Steps& steps, Text* out) {
  out->Line(WithNames("# The steps of a decoder, changed by", steps.flags, out));
  PrintLines(steps.text.model, steps.flags[0], out);
  PrintLines(steps.text.blocks, steps.flags[0], out);
}

void PrintSettings(const MegatronSettings& settings, const Steps* steps, Text* out) {
  for (const recipe::TableDoc& table : recipe::Tables()) {
    const bool has_steps = steps != nullptr && table.name == kModelTable;
    bool open = false;
    const auto header = [&] {
      if (open) return;
      open = true;
      out->Line("");
      out->Line(fmt::format("[{}]", table.name));
    };
    if (has_steps) header();
    for (const recipe::Field& field : recipe::Fields()) {
      const bool said_by_steps = steps != nullptr && field.ConditionOn(kFamilyKey) != nullptr;
      if (field.table() != table.name || said_by_steps) continue;
      const auto setting = settings.find(field.key);
      if (setting == settings.end()) continue;
      header();
      out->Line(WithComment(fmt::format("{} = {}", field.name(), recipe::ToToml(setting->second.value)),
                            setting->second.comment),
                setting->second.flag);
    }
    if (has_steps) PrintSteps(*steps, out);
  }
}

void PrintGroups(const MegatronModelChanges& changes, Text* out) {
  for (const std::string& group : changes.groups) {
    out->Line("");
    PrintLines(group, "", out);
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
    std::string line = WithNames("#", names, out);
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
recipe::LoadResult CheckRecipe(const Text& text, const MegatronArguments& arguments,
                               const MegatronOptions& options, const recipe::Source& script,
                               std::vector<Diagnostic>* diagnostics) {
  std::string alone = text.text;
  if (!options.cluster.empty()) alone[alone.find("extends = ")] = '#';
  recipe::LoadResult loaded = recipe::LoadText(alone, script.name());
  for (Diagnostic diagnostic : loaded.diagnostics) {
    const auto line = static_cast<std::size_t>(diagnostic.span.line);
    const std::string flag = line >= 1 && line <= text.flags.size() ? text.flags[line - 1] : "";
    const recipe::Mark mark = arguments.PlaceOf(flag);
    diagnostic.span = script.Span(mark);
    diagnostic.source_line = script.Line(mark.line);
    diagnostics->push_back(std::move(diagnostic));
  }
  return loaded;
}

// The settings of the same layout without experts, whose ranks are dp's then.
MegatronSettings WithoutExperts(MegatronSettings settings) {
  const auto ep = settings.find("parallelism.ep");
  const auto dp = settings.find("parallelism.dp");
  if (ep != settings.end() && dp != settings.end()) {
    dp->second.value = std::get<std::int64_t>(dp->second.value) * std::get<std::int64_t>(ep->second.value);
  }
  settings.erase("parallelism.ep");
  settings.erase("parallelism.expert_tp");
  settings.erase("debug.router");
  return settings;
}

// A model that needs steps is checked as the decoder that its keys say first: those rules know its flags.
std::optional<Steps> StepsOf(const MegatronSettings& settings, const MegatronModelChanges& changes,
                             const MegatronArguments& arguments, const MegatronOptions& options,
                             const recipe::Source& script, std::vector<Diagnostic>* diagnostics) {
  if (changes.flags.empty()) return std::nullopt;
  Text keys;
  PrintHeader(script, arguments, options, &keys);
  PrintSettings(WithoutExperts(settings), nullptr, &keys);
  const recipe::LoadResult decoder = CheckRecipe(keys, arguments, options, script, diagnostics);
  if (!decoder.ok()) return std::nullopt;
  return Steps{TextOfMegatronModel(decoder.recipe, changes), changes.flags};
}

// The recipe and its summary, of a command that passed the rules.
void WriteRecipe(const MegatronArguments& arguments, const MegatronOptions& options,
                 const recipe::Source& script, MegatronImport* result) {
  std::vector<Diagnostic>* diagnostics = &result->diagnostics;
  MegatronRemarks remarks;
  MegatronModelChanges changes;
  MegatronSettings settings = ConvertMegatron(arguments, &remarks, &changes);
  if (options.cluster.empty()) {
    settings["cluster.device"] = {std::string("h100"), "assumed, and its memory not checked: --cluster FILE",
                                  ""};
  }
  if (!result->ok()) return;
  const std::optional<Steps> steps = StepsOf(settings, changes, arguments, options, script, diagnostics);
  if (!result->ok()) return;
  Text text;
  PrintHeader(script, arguments, options, &text);
  PrintSettings(settings, steps ? &*steps : nullptr, &text);
  PrintGroups(changes, &text);
  std::size_t flags = 0;
  const std::vector<Leftover> leftovers = Leftovers(arguments, remarks, &flags);
  PrintLeftovers(leftovers, &text);
  WarnOfLeftovers(leftovers, script, diagnostics);
  result->summary = Summary(flags, leftovers);
  CheckRecipe(text, arguments, options, script, diagnostics);
  result->recipe = std::move(text.text);
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
    if (result.ok()) WriteRecipe(arguments, options, script, &result);
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
