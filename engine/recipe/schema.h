// The table of fields as a JSON Schema (draft-07), for editors that complete and check TOML.
#pragma once

#include <string>

namespace engine::recipe {

// Indented JSON, ending in a newline: the content of schemas/recipe.schema.json. No key is required in it,
// since a file may leave to `extends` what the whole recipe requires.
std::string JsonSchema();

// The same of studies (recipe/study.h): the content of schemas/study.schema.json.
std::string StudySchema();

}  // namespace engine::recipe
