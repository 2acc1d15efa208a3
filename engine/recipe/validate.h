// Everything that a recipe alone decides about its own consistency: one small function per rule.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/recipe/recipe.h"

namespace engine::recipe {

// All mistakes of a recipe whose single values are in range, sorted by place. Files on disk are not looked
// at, and nothing about graphs or devices is. A rule that reads one of `unusable` (dotted keys) is skipped.
std::vector<Diagnostic> Validate(const Recipe& recipe, const std::set<std::string>& unusable = {});

}  // namespace engine::recipe
