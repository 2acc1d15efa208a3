#include "engine/data/text_inputs.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

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

absl::Status ReadJson(const std::string& path, const std::string& contents, Documents* documents,
                      const std::vector<std::string>& keys = {"text"}) {
  return VisitJsonLines({path, 1}, contents, keys, [&](std::size_t, std::span<const std::string_view> texts) {
    if (documents != nullptr) documents->emplace_back(texts.begin(), texts.end());
    return absl::OkStatus();
  });
}

std::string JsonError(const std::string& contents) { return Message(ReadJson("f.jsonl", contents, nullptr)); }

Documents Plain(const std::string& contents, std::optional<std::string_view> separator) {
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
  REQUIRE(ReadJson("f", contents, &documents).ok());
  CHECK(documents == Documents{{"one\n\xC3\xA9"}, {"a", "", "b"}, {""}, {}});
}

TEST_CASE("JSON lines: mistakes are located") {
  CHECK(JsonError("{\"text\":\"a\"}\n{\"text\":\n").starts_with("f.jsonl:2:9: error: syntax error"));
  const std::string hint = "\n    hint: a line is an object of JSON here; --format text reads plain text";
  CHECK(JsonError("It was a day.\n").starts_with("f.jsonl:1:1: error: syntax error"));
  CHECK(JsonError("It was a day.\n").ends_with(hint));
  CHECK(JsonError("1984\n") == "f.jsonl:1: error: is a number, and must be an object" + hint);
  CHECK(!JsonError("{\"text\":\n").ends_with(hint));
  CHECK(JsonError("\n\n{\"txt\":1}") == "f.jsonl:3: error: has no key \"text\"");
  CHECK(JsonError("{\"text\":1}") ==
        "f.jsonl:1: error: \"text\" is a number, and must be a string or a list of strings");
  CHECK(JsonError("{\"text\":[null]}") ==
        "f.jsonl:1: error: the list \"text\" holds null, and must hold strings");
  CHECK(JsonError("{\"text\":{}}") ==
        "f.jsonl:1: error: \"text\" is an object, and must be a string or a list of strings");
  CHECK(JsonError("{\"text\":null}").starts_with("f.jsonl:1: error: \"text\" is null, and must"));
  CHECK(JsonError("[1]") == "f.jsonl:1: error: is a list, and must be an object");
  CHECK(JsonError("{\"text\":\"\xff\"}").find("ill-formed UTF-8 byte") != std::string::npos);
  CHECK(JsonError(std::string(1000000, '[')) == "f.jsonl:1: error: nested deeper than 64 levels");
  CHECK(JsonError("{\"text\":\"[[[" + std::string(100, '[') + "\\\"{\"}").empty());
  CHECK(JsonError("{\"text\":" + std::string(100000, 'x')).size() < 400);
}

TEST_CASE("JSON lines: numbers that no double holds are passed over beside the text") {
  const std::string digits(401, '7');
  Documents documents;
  const std::string contents =
      "{\"score\":1e999,\"text\":\"1e999 \\\" -1e400\"}\n"
      "{\"text\":\"b\",\"n\":[-1e400,{\"x\":-" +
      digits + "." + digits + "E+" + digits + "}]}\n{\"text\":[\"c\"],\"n\":" + digits + "}\n";
  REQUIRE(ReadJson("f", contents, &documents).ok());
  CHECK(documents == Documents{{"1e999 \" -1e400"}, {"b"}, {"c"}});
  CHECK(JsonError("{\"text\":\"fine\"}\n{\"text\":1e999}") ==
        "f.jsonl:2: error: \"text\" is a number, and must be a string or a list of strings");
  // What is no number by the grammar of JSON is located beside one that is.
  CHECK(JsonError("{\"a\":1e999,\"b\":01}").starts_with("f.jsonl:1:17: error: syntax error"));
  CHECK(JsonError("{\"a\":1e999,\"b\":1.}").starts_with("f.jsonl:1:18: error: syntax error"));
  CHECK(JsonError("{\"a\":1e999,\"b\":-}").starts_with("f.jsonl:1:17: error: syntax error"));
  CHECK(JsonError("{\"a\":1e999e,\"text\":\"\"}").starts_with("f.jsonl:1:"));
}

TEST_CASE("JSON lines: several keys, keys in objects, keys that stand twice") {
  Documents documents;
  const std::string line =
      "{\"a\":{\"b\":{\"c\":\"deep\"},\"b.c\":\"dotted\"},\"a.x\":\"whole\",\"t\":\"first\",\"t\":[\"last\"]"
      "}";
  REQUIRE(ReadJson("f", line, &documents, {"a.b.c", "a.x", "t"}).ok());
  CHECK(documents == Documents{{"dotted"}, {"whole"}, {"last"}});
  // What is read once more, for a number beyond all bounds, gives the same.
  Documents again;
  REQUIRE(
      ReadJson("f", line.substr(0, line.size() - 1) + ",\"n\":1e999}", &again, {"a.b.c", "a.x", "t"}).ok());
  CHECK(again == documents);
  CHECK(Message(ReadJson("f", line, nullptr, {"t", "a.y"})) == "f:1: error: has no key \"a.y\"");
  CHECK(Message(ReadJson("f", line, nullptr, {"t.x"})) == "f:1: error: has no key \"t.x\"");
  CHECK(Message(ReadJson("f", line, nullptr, {"a.b"})) ==
        "f:1: error: \"a.b\" is an object, and must be a string or a list of strings");
}

TEST_CASE("a visitor's failure is located, too") {
  const auto fail = [](std::span<const std::string_view>) { return InvalidArgument("full"); };
  const std::vector<std::string> keys = {"text"};
  CHECK(Message(VisitJsonLines({"f", 5}, "\n{\"text\":\"a\"}", keys, [&](std::size_t, const auto& texts) {
          return fail(texts);
        })) == "f:6: error: full");
  CHECK_FALSE(VisitPlainText("a\n%\nb", "%", fail).ok());
}

TEST_CASE("plain text is cut at separator lines") {
  CHECK(Plain("a\nb\n%\nc\n%\n", "%") == Documents{{"a\nb\n"}, {"c\n"}});
  CHECK(Plain("%\na\n%\r\n%\n\n%\nb %\n%%", "%") == Documents{{"a\n"}, {"\n"}, {"b %\n%%"}});
  CHECK(Plain("a\n%\nb\n", std::nullopt) == Documents{{"a\n%\nb\n"}});
  CHECK(Plain("", "%").empty());
  CHECK(Plain("", std::nullopt).empty());
  CHECK(Plain("%", "%").empty());
  CHECK(Plain("\na\nb\n\n\nc\r\n\r\n \n", "") == Documents{{"a\nb\n"}, {"c\r\n"}, {" \n"}});
  CHECK(Plain("", "").empty());
}

TEST_CASE("a directory stands for its text files, in order") {
  const TempDir dir;
  std::filesystem::create_directory(dir / "sub");
  for (const char* name : {"b", "a.txt", "a.dat", "a.u8", ".hidden", ".dat", "sub/.c", "sub/c"}) {
    WriteFile(dir / name, "x");
  }
  std::filesystem::create_directories(dir / ".git/objects");
  WriteFile(dir / ".git/objects/ab", "x");
  std::filesystem::create_symlink("b", dir / "link");
  std::filesystem::create_symlink(".hidden", dir / ".link");
  REQUIRE(mkfifo((dir / "pipe").c_str(), 0600) == 0);
  PassedOver passed_over;
  absl::StatusOr<std::vector<std::string>> files = ListInputs({dir / "sub/c", dir.path()}, &passed_over);
  REQUIRE(files.ok());
  CHECK(*files == std::vector<std::string>{dir / "sub/c", dir / "a.txt", dir / "b", dir / "sub/c"});
  CHECK(passed_over.hidden == 4);
  CHECK(passed_over.tables == 2);
  CHECK(passed_over.links == 2);
  CHECK(passed_over.others == 1);
  files = ListInputs({dir / "link"}, &passed_over);  // named by the user
  REQUIRE(files.ok());
  CHECK(files->size() == 1);
  CHECK(Message(ListInputs({dir / "no"}, &passed_over).status()) ==
        "input " + (dir / "no") + " does not exist");
  std::filesystem::create_directory(dir / "empty");
  CHECK(Message(ListInputs({dir / "empty"}, &passed_over).status()) == "no text files in " + (dir / "empty"));
}

}  // namespace engine::data
