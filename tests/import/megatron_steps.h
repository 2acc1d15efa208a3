// The model of an imported script as steps, by their names.
#pragma once

#include <doctest/doctest.h>

#include <map>
#include <string>

#include "engine/model/load.h"
#include "engine/recipe/text.h"
#include "tests/import/megatron_script.h"

namespace engine::import {

using TextTable = std::map<std::string, std::string>;  // "block.mlp.fc1" → the step

// `warned`: a part of the one warning that the flags give; empty: they give none.
inline recipe::Recipe LoadedImport(const Flags& changes, const std::string& warned = "") {
  const MegatronImport import = Import(Script(changes));
  const std::string messages = Messages(import.diagnostics);
  CAPTURE(messages);
  CHECK(messages.empty() == warned.empty());
  CHECK(messages.find(warned) != std::string::npos);
  const recipe::LoadResult loaded = model::LoadText(import.recipe, "a.toml");
  CAPTURE(import.recipe);
  CHECK(Messages(loaded.diagnostics).empty());
  return loaded.recipe;
}

// The steps of the model; none where it is written as a decoder's keys.
inline TextTable StepsOfImport(const Flags& changes, const std::string& warned = "") {
  const recipe::Recipe recipe = LoadedImport(changes, warned);
  TextTable rows;
  if (!recipe.is_text()) return rows;
  for (const auto& [name, row] : recipe::TextRows(*recipe.text)) rows[name] = row;
  return rows;
}

inline bool IsWithin(const std::string& part, const std::string& text) {
  return text.find(part) != std::string::npos;
}

}  // namespace engine::import
