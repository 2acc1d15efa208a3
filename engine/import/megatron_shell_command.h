// The simple commands of a shell text.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/import/megatron_shell.h"
#include "engine/import/megatron_shell_cursor.h"
#include "engine/import/megatron_shell_state.h"

namespace engine::import {

// One command with its words expanded, and whether it runs.
struct ShellSimpleCommand {
  std::vector<ShellText> words;
  std::vector<std::size_t> connectives = {};  // which of them are the operators && and || of [[ ]]
  bool assigned = false;                      // variables are set before the words, or instead of any
  ShellChance chance = ShellChance::kSurely;
  std::string why;            // the chance is not known: ": reason", or empty
  std::string function = {};  // whose body it is in; empty: of none
};

// Reads the words of one command, up to an operator that ends it, and carries out the assignments among them.
// The cursor stands before the first word, and afterwards before what ends it.
ShellSimpleCommand ReadShellCommand(ShellChance chance, std::string why, ShellCursor* cursor,
                                    ShellState* state);

}  // namespace engine::import
