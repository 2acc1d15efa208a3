// Scripts with which a shell completes the program's commands, options, words, keys and files.
#pragma once

#include <string>

#include "engine/cli/command_tree.h"

namespace engine::cli {

std::string BashCompletion(const CommandInfo& root);
std::string ZshCompletion(const CommandInfo& root);
std::string FishCompletion(const CommandInfo& root);

}  // namespace engine::cli
