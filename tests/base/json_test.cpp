#include "engine/base/json.h"

#include <doctest/doctest.h>

#include "engine/base/status.h"

namespace engine {
namespace {

std::string JsonFault(std::string_view text, std::int64_t first_line = 1) {
  return Message(ParseJson(text, "f.json", first_line).status());
}

TEST_CASE("JSON: mistakes are located by line and column") {
  CHECK(ParseJson("{\"a\": [1, {}]}", "f.json").value()["a"][0] == 1);
  CHECK(JsonFault("{\n  \"a\": 1,\n  oops\n}").starts_with("f.json:3:3: error: syntax error"));
  CHECK(JsonFault("[1,]", 7).starts_with("f.json:7:4: error: syntax error"));
  CHECK(JsonFault("").starts_with("f.json:1:1: error: "));
  CHECK(JsonFault("{\"a\"").starts_with("f.json:1:5: error: "));
  CHECK(JsonFault("\"" + std::string(100000, 'x')).size() < 300);
}

TEST_CASE("JSON: a number beyond a double is told apart, as it is JSON") {
  for (const std::string& number : {std::string("1e999"), std::string("-1e400"), std::string(401, '9')}) {
    const absl::Status status = ParseJson("\n[" + number + "]", "f.json").status();
    CHECK(absl::IsOutOfRange(status));
    CHECK(Message(status).starts_with("f.json: error: number overflow"));
    CHECK(Message(status).size() < 300);
    CHECK(JsonFault("[" + number + "]", 7).starts_with("f.json:7: error: number overflow"));
  }
}

TEST_CASE("JSON: depth is bounded, and brackets in strings are none") {
  const auto nested = [](int levels) {
    const auto count = static_cast<std::size_t>(levels);
    return std::string(count, '[') + std::string(count, ']');
  };
  CHECK(ParseJson(nested(kMostJsonDepth), "f").ok());
  CHECK(JsonFault(nested(kMostJsonDepth + 1)) == "f.json:1: error: nested deeper than 64 levels");
  CHECK(JsonFault(std::string(1000000, '{')) == "f.json:1: error: nested deeper than 64 levels");
  CHECK_FALSE(IsNestedDeeper("[\"[[[\\\"[[\"]", 1));
  CHECK(IsNestedDeeper("[\"\\\\\"[", 1));  // the string ends behind an escaped backslash
}

}  // namespace
}  // namespace engine
