// Pages and schemas that are written from the table of modules.
#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "engine/model/module.h"
#include "engine/model/reference.h"

namespace engine::model {
namespace {

std::string FileText(const std::string& path) {
  std::ifstream file(std::string(ENGINE_SOURCE_DIR) + "/" + path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

TEST_CASE("schemas/recipe.schema.json is what the tables say (engine schema > schemas/recipe.schema.json)") {
  CHECK((FileText("schemas/recipe.schema.json") == RecipeSchema()));
}

TEST_CASE(
    "schemas/study.schema.json is what the tables say (engine schema --study > schemas/study.schema.json)") {
  CHECK((FileText("schemas/study.schema.json") == StudySchema()));
}

TEST_CASE("docs/modules.md is what the table says (engine modules --page > docs/modules.md)") {
  CHECK((FileText("docs/modules.md") == ModulesPage()));
}

TEST_CASE("modules: every one says what it does, and each attribute once") {
  std::set<std::string_view> names;
  for (const auto* list : {&Modules(), &Structures()}) {
    for (const ModuleDef* module : *list) {
      CAPTURE(std::string(module->name));
      CHECK(names.insert(module->name).second);
      CHECK(module->doc.ends_with('.'));
      CHECK(FindModule(module->name) == module);
      std::set<std::string_view> attributes;
      for (const StepKey& key : StepKeys()) attributes.insert(key.name);
      for (const AttributeDef& def : module->attributes) {
        CAPTURE(std::string(def.name));
        CHECK(attributes.insert(def.name).second);
        CHECK(def.doc.ends_with('.'));
      }
    }
  }
  CHECK(FindModule("no_such_module") == nullptr);
}

TEST_CASE("schema: a step is of one module, with its attributes alone") {
  const nlohmann::json schema = nlohmann::json::parse(RecipeSchema());
  const nlohmann::json& steps = schema["definitions"]["step"]["anyOf"];
  CHECK(steps.size() == Modules().size() + Structures().size());
  for (const nlohmann::json& step : steps) {
    CHECK(step["additionalProperties"] == false);
    CHECK(step["properties"]["do"].contains("const"));
  }
  CHECK(schema["properties"]["model"]["properties"].contains("main"));
  CHECK(schema["properties"].contains("block"));
}

}  // namespace engine::model
