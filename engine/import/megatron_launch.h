// The training command of a launch script: how many ranks it starts, and the flags that it passes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/import/megatron_flags.h"
#include "engine/import/megatron_shell.h"
#include "engine/recipe/source.h"

namespace engine::import {

// Where a script does not say a value that is needed.
constexpr const char* kMegatronSetHint =
    "--set NAME=VALUE gives the script a variable, --set NAME= an empty one, --set 1=VALUE its first "
    "argument";

struct MegatronArgument {
  const MegatronFlag* flag = nullptr;
  ShellText name;  // as written
  std::vector<ShellText> values;
};

struct MegatronWorld {
  std::int64_t ranks = 0;
  std::int64_t nodes = 0;  // 0: not said
  std::int64_t ranks_per_node = 0;
  std::string launcher;  // "torchrun"
};

struct MegatronCommand {
  ShellText script;  // pretrain_gpt.py; of a plain list of arguments its first word
  MegatronWorld world;
  std::vector<MegatronArgument> arguments;  // in order
  bool complete = true;                     // false: some could not be read, which is reported
};

// The one training command of a script with its expansions made, or a plain list of arguments. `variables`:
// what the user set, of which WORLD_SIZE says the number of ranks where no launcher does. nullopt, with
// errors, if there is none, several, or the world is not known.
std::optional<MegatronCommand> FindMegatronCommand(const recipe::Source& source, const ShellScript& script,
                                                   const std::map<std::string, std::string>& variables,
                                                   std::vector<Diagnostic>* diagnostics);

// SLURM_NNODES and its like, as the script's #SBATCH lines would have them set.
std::map<std::string, std::string> SlurmVariables(const recipe::Source& source);

// Where a text stands, and how much of the line it takes.
recipe::Mark MarkOf(const recipe::Source& source, const ShellText& text);

}  // namespace engine::import
