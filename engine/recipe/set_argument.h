// One `--set section.key=value` of the command line.
#pragma once

#include <string>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/recipe/parse.h"

namespace engine::recipe {

// What the source of one is called.
inline constexpr const char* kSetSource = "--set";

// Mistakes are located as "--set:ordinal:column", the column counted in the argument.
Settings ParseSetArgument(const std::string& argument, int ordinal, std::vector<Diagnostic>* diagnostics);

}  // namespace engine::recipe
