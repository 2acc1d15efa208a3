// Whether what is printed has colours.
#pragma once

#include <cstdio>
#include <string>

namespace engine::cli {

// What --color says: "auto", "always" or "never". Holds for the whole program from then on.
void SetColor(const std::string& when);

// Whether to colour what goes to the stream. With "auto": on a terminal that is not dumb, unless NO_COLOR
// (no-color.org) is set; or wherever CLICOLOR_FORCE (bixense.com/clicolors) is set and not 0.
bool UsesColor(std::FILE* stream);

}  // namespace engine::cli
