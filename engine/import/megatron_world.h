// How many ranks a training command starts.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/import/megatron_launch.h"
#include "engine/import/megatron_shell.h"
#include "engine/recipe/source.h"

namespace engine::import {

// What may say the number of ranks.
struct MegatronStart {
  const std::vector<ShellText>& launcher;  // the words before the training script; none for a list of flags
  const ShellText& script;                 // where it is reported that nothing says it
  const ShellScript& shell;
  const std::map<std::string, std::string>& variables;  // set by the user
};

// By torchrun, torch.distributed, srun (with the #SBATCH lines of the file) or mpirun, else by WORLD_SIZE of
// the user, or else of the script. nullopt, with errors: it is not known.
std::optional<MegatronWorld> FindMegatronWorld(const recipe::Source& source, const MegatronStart& start,
                                               std::vector<Diagnostic>* diagnostics);

}  // namespace engine::import
