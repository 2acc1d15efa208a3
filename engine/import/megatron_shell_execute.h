// What a simple command of a shell script does, as far as it is followed.
#pragma once

#include <optional>
#include <vector>

#include "engine/import/megatron_shell.h"
#include "engine/import/megatron_shell_command.h"
#include "engine/import/megatron_shell_state.h"

namespace engine::import {

// A text that a command has bash read: of `bash -c`, or of eval.
struct ShellInnerText {
  ShellText text;
  std::vector<ShellText> before;  // the words before `bash -c`, of those around it too
};

// Changes the variables for a command of bash itself, and adds any other to the script's commands. `outer`:
// the words before the `bash -c` that it is in. `outcome`: of the command before, which stays where this
// one does not run. The text that is to be read now, if it has one.
std::optional<ShellInnerText> ExecuteShellCommand(const ShellSimpleCommand& command,
                                                  const std::vector<ShellText>& outer, ShellState* state,
                                                  ShellOutcome* outcome);

}  // namespace engine::import
