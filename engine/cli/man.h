// The manual page, in the macros of man(7).
#pragma once

#include <string>

#include "engine/cli/command_tree.h"

namespace engine::cli {

std::string ManualPage(const CommandInfo& root, const std::string& version);

}  // namespace engine::cli
