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

TEST_CASE("JSON: what is broken is quoted printably and shortly") {
  CHECK(JsonFault("{\"a\": \"\xff").ends_with("ill-formed UTF-8 byte; last read: '\"\\xff'"));
  const std::string long_one = JsonFault("\"" + std::string(5000, 'x') + "\xc3(");
  CHECK(long_one.size() < 250);
  CHECK(long_one.ends_with("…"));
}

TEST_CASE("JSON: a key that an object has twice is refused where one asks for it") {
  const auto fault = [](std::string_view text) {
    return Message(ParseStrictJson(text, "f.json", 7).status());
  };
  CHECK(ParseStrictJson(R"({"a": {"b": 1}, "c": [{"b": 1}, {"b": 2}]})", "f.json").value()["c"][1]["b"] == 2);
  CHECK(fault(R"({"a": 1, "b": 2, "a": 3})") == "f.json:7: error: the key \"a\" stands twice in one object");
  CHECK(fault("[{\"a\": {\"\": 1,\n \"\": 1}}]") == "f.json: error: the key \"\" stands twice in one object");
  CHECK(fault(R"({"\u0061": 1, "a": 1})") == "f.json:7: error: the key \"a\" stands twice in one object");
  CHECK(fault(R"({"\u001b": 1, "\u001b": 1})").find("\\x1b") != std::string::npos);
  CHECK(fault("{").starts_with("f.json:7:2: error: syntax error"));
  CHECK(ParseJson(R"({"a": 1, "a": 3})", "f.json").value()["a"] == 3);
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
