#include "engine/import/megatron_launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <utility>

#include "engine/import/megatron_shell_words.h"

namespace engine::import {
namespace {

std::string FileName(const ShellText& word) { return std::filesystem::path(word.text).filename().string(); }

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

class Finder {
 public:
  Finder(const recipe::Source& source, const ShellScript& script,
         const std::map<std::string, std::string>& variables, std::vector<Diagnostic>* diagnostics)
      : source_(source), script_(script), variables_(variables), diagnostics_(diagnostics) {}

  std::optional<MegatronCommand> Find() {
    std::vector<ShellText> words;
    if (!FindWords(&words)) return std::nullopt;
    const std::size_t before = diagnostics_->size();
    ReadArguments(words);
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
    for (const ShellCommand& command : script_.commands) {
      if (ScriptIndex(command) < 0) continue;
      if (found != nullptr) {
        Error(command.words[0], "this is a second training command",
              "a file with one training command is imported");
        return false;
      }
      found = &command;
    }
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

  void NoCommand() {
    for (const ShellCommand& command : script_.commands) {
      for (const ShellText& word : command.words) {
        if (word.unknown.empty()) continue;
        if (command.words.size() > 1 && FileName(command.words[0]) != "torchrun") continue;
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
    const std::string name = FileName(command_.script);
    for (const std::string_view other :
         {"bert", "t5", "ict", "retro", "mamba", "vision", "vlm", "realm", "biencoder"}) {
      if (name.find(other) == std::string::npos) continue;
      Error(command_.script, fmt::format("{} trains another kind of model", Shown(name)),
            "pretrain_gpt.py's models are imported: causal decoders");
      return false;
    }
    return true;
  }

  // The value of `--name=value`, `--name value`, of any of these names; the last counts.
  static std::optional<ShellText> Option(const std::vector<ShellText>& words,
                                         std::initializer_list<std::string_view> names) {
    std::optional<ShellText> value;
    for (std::size_t i = 0; i < words.size(); ++i) {
      for (const std::string_view name : names) {
        const std::string& word = words[i].text;
        const bool is_long = name.size() > 2;
        if (word == name && i + 1 < words.size()) value = words[i + 1];
        if (is_long && word.rfind(std::string(name) + "=", 0) == 0) {
          value = words[i].Substring(name.size() + 1, word.size());
        }
      }
    }
    return value;
  }

  static bool Has(const std::vector<ShellText>& words, std::string_view program) {
    return std::any_of(words.begin(), words.end(),
                       [&](const ShellText& word) { return FileName(word) == program; });
  }

  // A positive number of an option; `otherwise` if it is not given, 0 after an error.
  std::int64_t Count(const std::vector<ShellText>& words, std::initializer_list<std::string_view> names,
                     std::int64_t otherwise) {
    const std::optional<ShellText> value = Option(words, names);
    if (!value) return otherwise;
    if (!value->unknown.empty()) {
      Error(*value,
            fmt::format("{} is needed for the number of ranks, but {}", *names.begin(), value->unknown),
            kMegatronSetHint);
      return 0;
    }
    constexpr std::int64_t kMost = 1 << 20;
    const std::optional<std::int64_t> count = ShellInteger(value->text);
    if (count && *count > 0 && *count <= kMost) return *count;
    Error(*value,
          fmt::format("{} is '{}', and must be a number of at least 1", *names.begin(), Shown(value->text)),
          "how many there are");
    return 0;
  }

  bool FindWorld(const std::vector<ShellText>& launcher) {
    MegatronWorld& world = command_.world;
    const bool module = std::any_of(launcher.begin(), launcher.end(), [](const ShellText& word) {
      return word.text == "torch.distributed.run" || word.text == "torch.distributed.launch";
    });
    if (module || Has(launcher, "torchrun")) {
      world.launcher = module ? "torch.distributed" : "torchrun";
      world.nodes = Count(launcher, {"--nnodes"}, 1);
      world.ranks_per_node = Count(launcher, {"--nproc_per_node", "--nproc-per-node"}, 1);
    } else if (Has(launcher, "srun")) {
      world.launcher = "srun";
      FindSlurmWorld(launcher);
    } else if (Has(launcher, "mpirun") || Has(launcher, "mpiexec")) {
      world.launcher = "mpirun";
      world.ranks = Count(launcher, {"-np", "-n", "--np"}, 1);
      return world.ranks > 0;
    } else {
      return WorldOfVariable();
    }
    if (world.nodes == 0 || world.ranks_per_node == 0) return false;
    world.ranks = world.nodes * world.ranks_per_node;
    return true;
  }

  void FindSlurmWorld(const std::vector<ShellText>& launcher) {
    MegatronWorld& world = command_.world;
    const std::map<std::string, std::string> slurm = SlurmVariables(source_);
    const auto given = [&](const char* name) -> std::int64_t {
      const auto found = slurm.find(name);
      return found == slurm.end() ? 0 : ShellInteger(found->second).value_or(0);
    };
    const std::size_t before = diagnostics_->size();
    world.nodes = Count(launcher, {"--nodes", "-N"}, given("SLURM_NNODES"));
    world.ranks_per_node = Count(launcher, {"--ntasks-per-node"}, given("SLURM_NTASKS_PER_NODE"));
    const std::int64_t tasks = Count(launcher, {"--ntasks", "-n"}, given("SLURM_NTASKS"));
    if (world.nodes == 0 && tasks > 0) world.nodes = 1;
    if (world.ranks_per_node == 0 && world.nodes > 0 && tasks % world.nodes == 0) {
      world.ranks_per_node = tasks / world.nodes;
    }
    if (diagnostics_->size() > before || (world.nodes > 0 && world.ranks_per_node > 0)) return;
    Error(command_.script, "srun does not say how many ranks there are",
          "--nodes and --ntasks-per-node of srun, or in #SBATCH lines");
  }

  // Without a launcher that says it, WORLD_SIZE does: set by the user, or else by the file.
  bool WorldOfVariable() {
    constexpr std::int64_t kMost = 1 << 20;
    std::optional<std::string> text;
    if (const auto found = script_.variables.find("WORLD_SIZE"); found != script_.variables.end()) {
      if (!found->second.empty() && found->second[0].unknown.empty()) text = found->second[0].text;
    }
    if (const auto found = variables_.find("WORLD_SIZE"); found != variables_.end()) text = found->second;
    const std::optional<std::int64_t> ranks = text ? ShellInteger(*text) : std::nullopt;
    if (ranks && *ranks > 0 && *ranks <= kMost) {
      command_.world = {*ranks, 0, 0, "WORLD_SIZE"};
      return true;
    }
    Error(command_.script,
          text ? fmt::format("WORLD_SIZE is '{}', and must be a number of at least 1", Shown(*text))
               : "nothing says how many ranks there are: no torchrun, torch.distributed, srun or mpirun "
                 "starts it",
          "--set WORLD_SIZE=N");
    return false;
  }

  // ------------------------------------------------------------------------------------------- flags
  void ReadArguments(const std::vector<ShellText>& words) {
    for (std::size_t i = 0; i < words.size();) {
      const ShellText& word = words[i];
      if (!word.unknown.empty() && word.text.rfind("--", 0) != 0) {
        Error(word, fmt::format("flags may be hidden here: {}", word.unknown), kMegatronSetHint);
        ++i;
        continue;
      }
      if (word.text.rfind("--", 0) != 0) {
        Error(word, fmt::format("'{}' is no flag, and no value of the flag before it", Shown(word.text)));
        ++i;
        continue;
      }
      i = ReadArgument(words, i);
    }
  }

  // The flag at `i` with its values; the index behind them.
  std::size_t ReadArgument(const std::vector<ShellText>& words, std::size_t i) {
    const ShellText& word = words[i++];
    const std::size_t equals = word.text.find('=');
    const std::size_t name_end = std::min(equals, word.text.size());
    MegatronArgument argument{nullptr, word.Substring(0, name_end), {}};
    argument.name.unknown.clear();
    if (equals != std::string::npos) argument.values.push_back(word.Substring(equals + 1, word.text.size()));
    std::string problem;
    std::string hint;
    argument.flag = FindMegatronFlag(argument.name.text, &problem, &hint);
    if (argument.flag == nullptr) Error(argument.name, problem, hint);
    const bool many = argument.flag != nullptr && argument.flag->values == MegatronFlag::Values::kMany;
    while (i < words.size() && words[i].text.rfind("--", 0) != 0) {
      const bool enough =
          argument.flag != nullptr && !many &&
          argument.values.size() >= (argument.flag->values == MegatronFlag::Values::kOne ? 1 : 0);
      if (enough) break;
      argument.values.push_back(words[i++]);
    }
    if (argument.flag == nullptr) return i;
    CheckValues(argument, equals != std::string::npos);
    command_.arguments.push_back(std::move(argument));
    return i;
  }

  void CheckValues(const MegatronArgument& argument, bool equals) {
    const std::string& name = argument.name.text;
    if (argument.flag->values == MegatronFlag::Values::kNone && equals) {
      Error(argument.name, fmt::format("{} is a switch and takes no value", name));
    } else if (argument.flag->values != MegatronFlag::Values::kNone && argument.values.empty()) {
      Error(argument.name, fmt::format("{} has no value", name));
    }
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
