#include "engine/recipe/schema.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <string>

#include "engine/recipe/fields.h"
#include "engine/recipe/split.h"

namespace engine::recipe {

TEST_CASE("the pattern of a split says what the parser takes, but for a sum of 0") {
  const std::regex pattern(FindField("data.split")->pattern, std::regex::ECMAScript);
  for (const char* text : {"969,30,1", "1", "1,0", " 0.5 , .5,3.", "90,10\t", "", ",", "1,", "1,,1",
                           "1,2,3,4", "a", "-1,2", "1 2", "1e3", "inf", "0x1", "1;2", "."}) {
    CAPTURE(text);
    CHECK(std::regex_match(text, pattern) == ParseSplit(text).ok());
  }
}

TEST_CASE("the schema nests the tables and refuses other keys") {
  const nlohmann::json schema = nlohmann::json::parse(JsonSchema());
  CHECK(schema["$schema"] == "http://json-schema.org/draft-07/schema#");
  CHECK(schema["additionalProperties"] == false);
  CHECK(schema["properties"].size() == 20);  // 19 sections and extends
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
