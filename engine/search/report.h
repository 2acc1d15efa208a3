// What a search found, as `engine search` prints it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "engine/recipe/recipe.h"
#include "engine/search/search.h"

namespace engine::search {

std::string ToText(const SearchResult& result, const recipe::Recipe& recipe);

// Numbers that are not known are null.
nlohmann::ordered_json ToJson(const SearchResult& result, const recipe::Recipe& recipe);

// A recipe that extends `base` by what differs between `recipe`, which `base` alone resolves to, and
// `changed`.
std::string FoundRecipe(const recipe::Recipe& recipe, const recipe::Recipe& changed, const std::string& base);

}  // namespace engine::search
