#include "engine/import/megatron_launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/import/megatron_launch_flags.h"
#include "engine/import/megatron_shell_words.h"
#include "engine/import/megatron_world.h"

namespace engine::import {
namespace {

bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// A word of a training command after which its flags come; −1: the command has none.
std::int64_t ScriptIndex(const ShellCommand& command) {
  for (std::size_t i = 0; i < command.words.size(); ++i) {
    if (!EndsWith(command.words[i].text, ".py")) continue;
    for (std::size_t k = i + 1; k < command.words.size(); ++k) {
      for (const std::string_view flag : {"--num-layers", "--micro-batch-size", "--hidden-size"}) {
        const std::string& word = command.words[k].text;
        if (word == flag || word.rfind(std::string(flag) + "=", 0) == 0) return static_cast<std::int64_t>(i);
      }
    }
  }
  return -1;
}

// Whether anything outside of a function may call it: by its name, also as a word of another command, or by a name that is
// not known.
bool MayCall(const ShellScript& script, const std::string& function) {
  return std::any_of(script.commands.begin(), script.commands.end(), [&](const ShellCommand& command) {
    if (command.function == function) return false;
    return !command.words[0].unknown.empty() ||
           std::any_of(command.words.begin(), command.words.end(),
                       [&](const ShellText& word) { return word.text == function; });
  });
}

// Finds the training command among those of a script, and has its launcher and its flags read.
class Finder {
 public:
  Finder(const recipe::Source& source, const ShellScript& script,
         const std::map<std::string, std::string>& variables, std::vector<Diagnostic>* diagnostics)
      : source_(source), script_(script), variables_(variables), diagnostics_(diagnostics) {}

  std::optional<MegatronCommand> Find() {
    std::vector<ShellText> words;
    if (!FindWords(&words)) return std::nullopt;
    const std::size_t before = diagnostics_->size();
    command_.arguments = ReadMegatronFlags(source_, words, diagnostics_);
    command_.complete = diagnostics_->size() == before;
    return std::move(command_);
  }

 private:
  void Error(const ShellText& at, std::string message, std::string hint = "") {
    diagnostics_->push_back(source_.Error(MarkOf(source_, at), std::move(message), std::move(hint)));
  }

  // The words behind the training script's name. False: there are none, and errors say why.
  bool FindWords(std::vector<ShellText>* words) {
    const ShellCommand* found = nullptr;
    const ShellCommand* uncalled = nullptr;  // in a function that nothing calls
    for (const ShellCommand& command : script_.commands) {
      if (ScriptIndex(command) < 0) continue;
      if (!command.function.empty() && !MayCall(script_, command.function)) {
        uncalled = &command;
        continue;
      }
      if (found != nullptr) {
        Error(command.words[0],
              fmt::format("this is a second training command; the first is at line {}",
                          MarkOf(source_, found->words[0]).line),
              "a file with one training command is imported");
        return false;
      }
      found = &command;
    }
    if (found == nullptr) found = uncalled;
    if (found == nullptr) return PlainList(words);
    const auto index = static_cast<std::size_t>(ScriptIndex(*found));
    command_.script = found->words[index];
    if (!found->uncertain.empty()) {
      Error(found->words[0], fmt::format("the training command cannot be read: {}", found->uncertain),
            "a file with the training command outside of it");
      return false;
    }
    words->assign(found->words.begin() + static_cast<std::ptrdiff_t>(index) + 1, found->words.end());
    std::vector<ShellText> launcher = found->outer;
    launcher.insert(launcher.end(), found->words.begin(),
                    found->words.begin() + static_cast<std::ptrdiff_t>(index));
    return IsDecoderScript() && FindWorld(launcher);
  }

  // A file that is nothing but flags, on one line or many.
  bool PlainList(std::vector<ShellText>* words) {
    for (const ShellCommand& command : script_.commands) {
      if (command.words[0].text.rfind("--", 0) != 0) {
        if (words->empty()) continue;
        Error(command.words[0], "this is no flag of the list before it",
              "a list of flags alone, or a script");
        return false;
      }
      words->insert(words->end(), command.words.begin(), command.words.end());
    }
    if (words->empty()) {
      NoCommand();
      return false;
    }
    command_.script = words->front();
    return FindWorld({});
  }

  bool FindWorld(const std::vector<ShellText>& launcher) {
    const std::optional<MegatronWorld> world =
        FindMegatronWorld(source_, {launcher, command_.script, script_, variables_}, diagnostics_);
    if (world) command_.world = *world;
    return world.has_value();
  }

  void NoCommand() {
    for (const ShellCommand& command : script_.commands) {
      for (const ShellText& word : command.words) {
        if (word.unknown.empty()) continue;
        if (command.words.size() > 1 && ShellFileName(command.words[0].text) != "torchrun") continue;
        Error(word, fmt::format("the training command cannot be read: {}", word.unknown), kMegatronSetHint);
        return;
      }
    }
    diagnostics_->push_back({Severity::kError,
                             {source_.name(), 0, 0, 1},
                             "there is no training command: none passes --num-layers, --hidden-size or "
                             "--micro-batch-size to a .py file",
                             "a launch script, or a file of flags alone",
                             ""});
  }

  bool IsDecoderScript() {
    const std::string name = ShellFileName(command_.script.text);
    for (const std::string_view other :
         {"bert", "t5", "ict", "retro", "mamba", "vision", "vlm", "realm", "biencoder"}) {
      if (name.find(other) == std::string::npos) continue;
      Error(command_.script, fmt::format("{} trains another kind of model", Shown(name)),
            "pretrain_gpt.py's models are imported: causal decoders");
      return false;
    }
    return true;
  }

  const recipe::Source& source_;
  const ShellScript& script_;
  const std::map<std::string, std::string>& variables_;
  std::vector<Diagnostic>* diagnostics_;
  MegatronCommand command_;
};

}  // namespace

std::optional<MegatronCommand> FindMegatronCommand(const recipe::Source& source, const ShellScript& script,
                                                   const std::map<std::string, std::string>& variables,
                                                   std::vector<Diagnostic>* diagnostics) {
  return Finder(source, script, variables, diagnostics).Find();
}

std::map<std::string, std::string> SlurmVariables(const recipe::Source& source) {
  constexpr std::string_view kPrefix = "#SBATCH";
  constexpr std::pair<std::string_view, const char*> kOptions[] = {
      {"--nodes", "SLURM_NNODES"},  {"-N", "SLURM_NNODES"}, {"--ntasks-per-node", "SLURM_NTASKS_PER_NODE"},
      {"--ntasks", "SLURM_NTASKS"}, {"-n", "SLURM_NTASKS"}, {"--gpus-per-node", "SLURM_GPUS_PER_NODE"}};
  std::map<std::string, std::string> variables;
  std::size_t at = 0;
  while (at < source.text().size()) {
    const std::size_t end = std::min(source.text().find('\n', at), source.text().size());
    std::string line = source.text().substr(at, end - at);
    at = end + 1;
    if (line.rfind(kPrefix, 0) != 0) continue;
    line.erase(0, kPrefix.size());
    line.erase(0, std::min(line.find_first_not_of(" \t"), line.size()));
    for (const auto& [option, variable] : kOptions) {
      if (line.rfind(option, 0) != 0 || line.size() <= option.size()) continue;
      const char separator = line[option.size()];
      if (separator != '=' && separator != ' ' && separator != '\t') continue;
      std::string value = line.substr(option.size() + 1);
      value.erase(0, std::min(value.find_first_not_of(" \t"), value.size()));
      value.resize(std::min(value.find_first_of(" \t\r#"), value.size()));
      variables[variable] = value;
      if (variable == std::string_view("SLURM_NNODES")) variables["SLURM_JOB_NUM_NODES"] = value;
    }
  }
  return variables;
}

recipe::Mark MarkOf(const recipe::Source& source, const ShellText& text) {
  if (source.text().empty()) return {};
  recipe::Mark mark = source.MarkOfOffset(std::min(text.place, source.text().size() - 1));
  int length = 0;
  for (std::size_t i = 0; i < text.places.size() && text.places[i] == text.place + i; ++i) {
    if (text.text[i] == '\n') break;
    ++length;
  }
  mark.length = std::max(1, length);
  return mark;
}

}  // namespace engine::import
