#include "engine/recipe/schema.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "engine/recipe/fields.h"
#include "tests/recipe/test_files.h"

namespace engine::recipe {

TEST_CASE("schemas/recipe.schema.json is what the table says (engine schema > schemas/recipe.schema.json)") {
  CHECK((ReadText(std::string(ENGINE_SOURCE_DIR) + "/schemas/recipe.schema.json") == JsonSchema()));
}

TEST_CASE("the schema nests the tables and refuses other keys") {
  const nlohmann::json schema = nlohmann::json::parse(JsonSchema());
  CHECK(schema["$schema"] == "http://json-schema.org/draft-07/schema#");
  CHECK(schema["additionalProperties"] == false);
  CHECK(schema["properties"].size() == 14);  // 13 sections and extends
  const nlohmann::json& attention = schema["properties"]["model"]["properties"]["attention"];
  CHECK(attention["additionalProperties"] == false);
  CHECK(attention["properties"]["heads"]["type"] == "integer");
  CHECK(attention["properties"]["heads"]["minimum"] == 1);
  CHECK(!attention["properties"]["heads"].contains("default"));
  CHECK(attention["properties"]["position"]["enum"] == nlohmann::json({"learned", "rotary", "none"}));
  CHECK(attention["properties"]["position"]["default"] == "learned");
  CHECK(attention["properties"]["rope_scaling"]["properties"]["factor"]["default"] == 1.0);
  CHECK(schema["properties"]["optimizer"]["properties"]["beta1"]["exclusiveMaximum"] == 1.0);
  CHECK(schema["properties"]["recompute"]["properties"]["modules"]["items"]["enum"].size() == 3);
  CHECK(schema["properties"]["cluster"]["properties"]["memory_bytes"]["anyOf"].size() == 2);
}

}  // namespace engine::recipe
