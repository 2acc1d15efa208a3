// What must be true of a text before a recursive TOML parser may see it.
#pragma once

#include <optional>

#include "engine/base/diagnostic.h"
#include "engine/recipe/source.h"

namespace engine::recipe {

// The first place where the text is no UTF-8, has a NUL byte, nests brackets or dotted keys too deeply or has
// too many values; nullopt if there is none. Linear in the text, constant in depth.
std::optional<Diagnostic> FindUnsafeText(const Source& source);

}  // namespace engine::recipe
