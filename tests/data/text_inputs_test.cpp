#include "engine/data/text_inputs.h"

#include <doctest/doctest.h>

#include "engine/base/status.h"
#include "tests/data/temp_dir.h"

namespace engine::data {
namespace {

using Documents = std::vector<std::vector<std::string>>;

DocumentVisitor Collect(Documents* documents) {
  return [documents](std::span<const std::string_view> sequences) {
    documents->emplace_back(sequences.begin(), sequences.end());
    return absl::OkStatus();
  };
}

std::string JsonError(const std::string& contents) {
  Documents documents;
  return Message(VisitJsonLines("f.jsonl", contents, "text", Collect(&documents)));
}

Documents Plain(const std::string& contents, const std::string& separator) {
  Documents documents;
  CHECK(VisitPlainText(contents, separator, Collect(&documents)).ok());
  return documents;
}

}  // namespace

TEST_CASE("JSON lines: strings, lists, blank lines, no newline at the end") {
  Documents documents;
  const std::string contents =
      "{\"text\":\"one\\n\\u00e9\",\"x\":[{}]}\r\n\n{\"text\":[\"a\",\"\",\"b\"]}\n  "
      "\n{\"text\":\"\"}\n{\"text\":[]}";
  REQUIRE(VisitJsonLines("f", contents, "text", Collect(&documents)).ok());
  CHECK(documents == Documents{{"one\n\xC3\xA9"}, {"a", "", "b"}, {""}, {}});
}

TEST_CASE("JSON lines: mistakes are located") {
  CHECK(JsonError("{\"text\":\"a\"}\n{\"text\":\n").starts_with("f.jsonl:2: error: column 9: syntax error"));
  CHECK(JsonError("\n\n{\"txt\":1}") == "f.jsonl:3: error: has no key \"text\"");
  CHECK(JsonError("{\"text\":1}") ==
        "f.jsonl:1: error: \"text\" is a number, and must be a string or a list of strings");
  CHECK(JsonError("{\"text\":[null]}") ==
        "f.jsonl:1: error: the list \"text\" holds a null, and must hold strings");
  CHECK(JsonError("[1]") == "f.jsonl:1: error: is a JSON array, and must be an object");
  CHECK(JsonError("{\"text\":\"\xff\"}").find("ill-formed UTF-8 byte") != std::string::npos);
  CHECK(JsonError(std::string(1000000, '[')) == "f.jsonl:1: error: nested deeper than 64 levels");
  CHECK(JsonError("{\"text\":\"[[[" + std::string(100, '[') + "\\\"{\"}").empty());
  CHECK(JsonError("{\"text\":" + std::string(100000, 'x')).size() < 400);
}

TEST_CASE("a visitor's failure is located, too") {
  const auto fail = [](std::span<const std::string_view>) { return InvalidArgument("full"); };
  CHECK(Message(VisitJsonLines("f", "\n{\"text\":\"a\"}", "text", fail)) == "f:2: error: full");
  CHECK_FALSE(VisitPlainText("a\n%\nb", "%", fail).ok());
}

TEST_CASE("plain text is cut at separator lines") {
  CHECK(Plain("a\nb\n%\nc\n%\n", "%") == Documents{{"a\nb\n"}, {"c\n"}});
  CHECK(Plain("%\na\n%\r\n%\n\n%\nb %\n%%", "%") == Documents{{"a\n"}, {"\n"}, {"b %\n%%"}});
  CHECK(Plain("a\n%\nb\n", "") == Documents{{"a\n%\nb\n"}});
  CHECK(Plain("", "%").empty());
  CHECK(Plain("", "").empty());
  CHECK(Plain("%", "%").empty());
}

TEST_CASE("a directory stands for its text files, in order") {
  const TempDir dir;
  std::filesystem::create_directory(dir / "sub");
  for (const char* name : {"b", "a.txt", "a.dat", "a.u8", ".hidden", "sub/c"}) WriteFile(dir / name, "x");
  std::filesystem::create_symlink("b", dir / "link");
  absl::StatusOr<std::vector<std::string>> files = ListInputs({dir / "sub/c", dir.path()});
  REQUIRE(files.ok());
  CHECK(*files == std::vector<std::string>{dir / "sub/c", dir / "a.txt", dir / "b", dir / "sub/c"});
  files = ListInputs({dir / "link"});  // named by the user
  REQUIRE(files.ok());
  CHECK(files->size() == 1);
  CHECK(Message(ListInputs({dir / "no"}).status()) == "input " + (dir / "no") + " does not exist");
  std::filesystem::create_directory(dir / "empty");
  CHECK(Message(ListInputs({dir / "empty"}).status()) == "no text files in " + (dir / "empty"));
}

}  // namespace engine::data
