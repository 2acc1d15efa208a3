#include "engine/import/megatron_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "engine/import/megatron_shell_words.h"

namespace engine::import {
namespace {

constexpr std::int64_t kMostRanks = 1 << 20;

// Reads a launcher's options, or what stands in for them, for the number of ranks; says what is wrong with
// them.
class WorldFinder {
 public:
  WorldFinder(const recipe::Source& source, const MegatronStart& start, std::vector<Diagnostic>* diagnostics)
      : source_(source), start_(start), diagnostics_(diagnostics) {}

  std::optional<MegatronWorld> Find() {
    const std::vector<ShellText>& launcher = start_.launcher;
    const bool module = std::any_of(launcher.begin(), launcher.end(), [](const ShellText& word) {
      return word.text == "torch.distributed.run" || word.text == "torch.distributed.launch";
    });
    MegatronWorld world;
    if (module || Has(launcher, "torchrun")) {
      world.launcher = module ? "torch.distributed" : "torchrun";
      world.nodes = Count({"--nnodes"}, 1);
      world.ranks_per_node = Count({"--nproc_per_node", "--nproc-per-node"}, 1);
    } else if (Has(launcher, "srun")) {
      world = OfSlurm();
    } else if (Has(launcher, "mpirun") || Has(launcher, "mpiexec")) {
      world.launcher = "mpirun";
      world.ranks = Count({"-np", "-n", "--np"}, 1);
      return world.ranks > 0 ? std::optional(world) : std::nullopt;
    } else {
      return OfVariable();
    }
    if (world.nodes == 0 || world.ranks_per_node == 0) return std::nullopt;
    world.ranks = world.nodes * world.ranks_per_node;
    return world;
  }

 private:
  void Error(const ShellText& at, std::string message, std::string hint) {
    diagnostics_->push_back(source_.Error(MarkOf(source_, at), std::move(message), std::move(hint)));
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
                       [&](const ShellText& word) { return ShellFileName(word.text) == program; });
  }

  // A positive number of an option; `otherwise` if it is not given, 0 after an error.
  std::int64_t Count(std::initializer_list<std::string_view> names, std::int64_t otherwise) {
    const std::optional<ShellText> value = Option(start_.launcher, names);
    if (!value) return otherwise;
    if (!value->unknown.empty()) {
      Error(*value,
            fmt::format("{} is needed for the number of ranks, but {}", *names.begin(), value->unknown),
            kMegatronSetHint);
      return 0;
    }
    const std::optional<std::int64_t> count = ShellInteger(value->text);
    if (count && *count > 0 && *count <= kMostRanks) return *count;
    Error(*value,
          fmt::format("{} is '{}', and must be a number of at least 1", *names.begin(), Shown(value->text)),
          "how many there are");
    return 0;
  }

  // What srun's options and #SBATCH lines say; numbers are 0 where they do not, which is reported.
  MegatronWorld OfSlurm() {
    MegatronWorld world;
    world.launcher = "srun";
    const std::map<std::string, std::string> slurm = SlurmVariables(source_);
    const auto given = [&](const char* name) -> std::int64_t {
      const auto found = slurm.find(name);
      return found == slurm.end() ? 0 : ShellInteger(found->second).value_or(0);
    };
    const std::size_t before = diagnostics_->size();
    world.nodes = Count({"--nodes", "-N"}, given("SLURM_NNODES"));
    world.ranks_per_node = Count({"--ntasks-per-node"}, given("SLURM_NTASKS_PER_NODE"));
    const std::int64_t tasks = Count({"--ntasks", "-n"}, given("SLURM_NTASKS"));
    if (world.nodes == 0 && tasks > 0) world.nodes = 1;
    if (world.ranks_per_node == 0 && world.nodes > 0 && tasks % world.nodes == 0) {
      world.ranks_per_node = tasks / world.nodes;
    }
    if (diagnostics_->size() > before || (world.nodes > 0 && world.ranks_per_node > 0)) return world;
    Error(start_.script, "srun does not say how many ranks there are",
          "--nodes and --ntasks-per-node of srun, or in #SBATCH lines");
    return world;
  }

  // Without a launcher that says it, WORLD_SIZE does: set by the user, or else by the file.
  std::optional<MegatronWorld> OfVariable() {
    std::optional<std::string> text;
    if (const auto found = start_.shell.variables.find("WORLD_SIZE"); found != start_.shell.variables.end()) {
      if (!found->second.empty() && found->second[0].unknown.empty()) text = found->second[0].text;
    }
    if (const auto found = start_.variables.find("WORLD_SIZE"); found != start_.variables.end())
      text = found->second;
    const std::optional<std::int64_t> ranks = text ? ShellInteger(*text) : std::nullopt;
    if (ranks && *ranks > 0 && *ranks <= kMostRanks) {
      return MegatronWorld{*ranks, 0, 0, "WORLD_SIZE"};
    }
    Error(start_.script,
          text ? fmt::format("WORLD_SIZE is '{}', and must be a number of at least 1", Shown(*text))
               : "nothing says how many ranks there are: no torchrun, torch.distributed, srun or mpirun "
                 "starts it",
          "--set WORLD_SIZE=N");
    return std::nullopt;
  }

  const recipe::Source& source_;
  const MegatronStart& start_;
  std::vector<Diagnostic>* diagnostics_;
};

}  // namespace

std::optional<MegatronWorld> FindMegatronWorld(const recipe::Source& source, const MegatronStart& start,
                                               std::vector<Diagnostic>* diagnostics) {
  return WorldFinder(source, start, diagnostics).Find();
}

}  // namespace engine::import
