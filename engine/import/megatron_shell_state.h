// What the reading of a shell script knows so far, in all its texts together.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/import/megatron_shell.h"
#include "engine/import/megatron_shell_tokens.h"
#include "engine/import/megatron_shell_words.h"

namespace engine::import {

// Whether what is written here happens: by the conditions around it.
enum class ShellChance { kNever, kPerhaps, kSurely };

// What a command came to.
struct ShellOutcome {
  std::optional<bool> status;  // nullopt: it is not known, as the command is not run
  std::string why;             // it is not known; may be empty
};

struct ShellState {
  ShellVariables variables;
  std::vector<ShellCommand> commands;
  std::optional<ShellError> error;  // the first one, which ends the reading
  bool exited = false;
  int texts = 0;  // inside of one another

  bool Stopped() const { return error.has_value() || exited; }
  void Fail(std::size_t place, std::string message) {
    if (!error) error = ShellError{place, std::move(message)};
  }
};

}  // namespace engine::import
