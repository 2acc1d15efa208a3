// A resolved recipe as text, and what differs between two.
#pragma once

#include <string>
#include <vector>

#include "engine/recipe/recipe.h"

namespace engine::recipe {

// The whole recipe as one TOML file without `extends`, each value followed by "# where it comes from".
// Loading it gives the same recipe.
std::string ToToml(const Recipe& recipe);

// {"model.layers": {"value": 12, "origin": "file", "location": "a.toml:3:10"}, …}, indented, ending in a
// newline.
std::string ToJson(const Recipe& recipe);

// Where a key's value comes from: "a.toml:3:10", "--set:1:12", or "default". Keys of the text are those that Diff names.
std::string OriginOf(const Recipe& recipe, const std::string& key);

// 32 hex digits that depend on the values that are not defaults, and on nothing else.
std::string HashOfValues(const Recipe& recipe);

struct Change {
  std::string key;     // "model.layers"
  std::string before;  // as TOML
  std::string after;
};

// The fields whose values differ, in the order of the table of fields.
std::vector<Change> Diff(const Recipe& before, const Recipe& after);

}  // namespace engine::recipe
