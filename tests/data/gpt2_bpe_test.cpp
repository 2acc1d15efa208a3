#include "engine/data/gpt2_bpe.h"

#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/base/status.h"
#include "tests/data/temp_dir.h"

namespace engine::data {
namespace {

std::unique_ptr<Gpt2Bpe> Small() {
  absl::StatusOr<std::unique_ptr<Gpt2Bpe>> bpe =
      Gpt2Bpe::Load(TestData("gpt2/vocab.json"), TestData("gpt2/merges.txt"));
  REQUIRE_MESSAGE(bpe.ok(), Message(bpe.status()));
  return *std::move(bpe);
}

std::vector<std::int32_t> Encode(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::int32_t> ids;
  REQUIRE(tokenizer.EncodeTo(text, &ids).ok());
  return ids;
}

std::string LoadError(const std::string& vocab, const std::string& merges) {
  const TempDir dir;
  WriteFile(dir / "vocab.json", vocab);
  WriteFile(dir / "merges.txt", merges);
  std::string message = Message(Gpt2Bpe::Load(dir / "vocab.json", dir / "merges.txt").status());
  for (std::size_t at = 0; (at = message.find(dir.path() + "/")) != std::string::npos;) {
    message.erase(at, dir.path().size() + 1);
  }
  return message;
}

}  // namespace

TEST_CASE("ids are the oracle's, and text comes back") {
  const std::unique_ptr<Gpt2Bpe> bpe = Small();
  std::ifstream file(TestData("gpt2/oracle.json"));
  for (const nlohmann::json& oracle_case : nlohmann::json::parse(file)) {
    const std::string text = oracle_case["text"];
    CAPTURE(text);
    const std::vector<std::int32_t> ids = Encode(*bpe, text);
    CHECK(ids == oracle_case["ids"].get<std::vector<std::int32_t>>());
    CHECK(bpe->Decode(ids) == text);
  }
}

TEST_CASE("all occurrences of a pair are merged before a stronger pair that they make") {
  const TempDir dir;
  nlohmann::json vocab = nlohmann::json::parse(ReadFile(TestData("gpt2/vocab.json")));
  for (const char* token : {"bc", "abc", "abca"}) {
    const std::size_t next_id = vocab.size();
    vocab.emplace(token, next_id);
  }
  WriteFile(dir / "vocab.json", vocab.dump());
  WriteFile(dir / "merges.txt", "b c\nabc a\na bc\n");
  const absl::StatusOr<std::unique_ptr<Gpt2Bpe>> bpe = Gpt2Bpe::Load(dir / "vocab.json", dir / "merges.txt");
  REQUIRE_MESSAGE(bpe.ok(), Message(bpe.status()));
  CHECK(Encode(**bpe, "abcabc") == std::vector<std::int32_t>{vocab["abc"], vocab["abc"]});
  CHECK(Encode(**bpe, "abca") == std::vector<std::int32_t>{vocab["abca"]});
}

TEST_CASE("the end of a document is a token, and in text it is characters") {
  const std::unique_ptr<Gpt2Bpe> bpe = Small();
  CHECK(bpe->end_of_document() == bpe->vocab_size() - 1);
  CHECK(Encode(*bpe, "<|endoftext|>").size() > 1);
  const std::vector<std::int32_t> ids = {bpe->end_of_document(),
                                         static_cast<std::int32_t>(bpe->vocab_size())};
  CHECK(bpe->Decode(ids) == kReplacementCharacter);
}

TEST_CASE("bytes that are not UTF-8 are kept") {
  const std::unique_ptr<Gpt2Bpe> bpe = Small();
  std::string every_byte;
  for (int byte = 0; byte < 256; ++byte) every_byte += static_cast<char>(byte);
  for (const std::string& text :
       {std::string("the \xff\xfe the"), std::string("\xE4\xB8"), std::string("\xED\xA0\x80"),
        std::string("\xC0\xAFthe"), std::string("\xF4\x90\x80\x80"), every_byte, every_byte + every_byte}) {
    CHECK(bpe->Decode(Encode(*bpe, text)) == text);
  }
  // The valid text on both sides is encoded as if it stood alone.
  std::vector<std::int32_t> expected = Encode(*bpe, "the ");
  for (std::int32_t id : Encode(*bpe, "\xff")) expected.push_back(id);
  for (std::int32_t id : Encode(*bpe, " the")) expected.push_back(id);
  CHECK(Encode(*bpe, "the \xff the") == expected);
}

TEST_CASE("a megabyte without a break is encoded in time that grows like its length") {
  const std::unique_ptr<Gpt2Bpe> bpe = Small();
  constexpr std::size_t kBytes = 1 << 20;
  for (const char* unit : {"a", "the", " ", "!", "\xE4\xB8\x96", "1", "\xff"}) {
    std::string text;
    while (text.size() < kBytes) text += unit;
    CHECK(bpe->Decode(Encode(*bpe, text)) == text);
  }
}

TEST_CASE("broken vocabularies and merges are located") {
  const std::string vocab = ReadFile(TestData("gpt2/vocab.json"));
  const std::string end = R"("<|endoftext|>":)";
  const auto replaced = [&](const std::string& what, const std::string& with) {
    std::string changed = vocab;
    changed.replace(changed.find(what), what.size(), with);
    return changed;
  };
  CHECK(LoadError(vocab, "#version: 0.2\n").empty());
  CHECK(LoadError(vocab, "").empty());
  CHECK(LoadError("{", "").starts_with("vocab.json:1:2: error: syntax error"));
  CHECK(LoadError("[]", "") == "vocab.json: is a list, and must be an object from token to id");
  // Deep enough that walking over the value would overflow the stack.
  const std::string deep = "{\"zzz\":" + std::string(1000000, '[') + std::string(1000000, ']') + "}";
  CHECK(LoadError(deep, "") == "vocab.json:1: error: nested deeper than 64 levels");
  const std::string long_token(5000, 'q');
  CHECK(LoadError("{\"" + long_token + "\":\"" + long_token + "\"}", "").size() < 300);
  CHECK(LoadError(R"({"a":0})", "").starts_with("vocab.json: has no token \"\xC4\x80\" for byte 0"));
  CHECK(LoadError(R"({"a":1})", "") == "vocab.json: the id of \"a\" is 1; 1 tokens have ids 0 to 0");
  CHECK(LoadError(R"({"a":"x"})", "").starts_with("vocab.json: the id of \"a\" is \"x\""));
  CHECK(LoadError(R"({"a":-1})", "").starts_with("vocab.json: the id of \"a\" is -1"));
  CHECK(LoadError(R"({"a":1,"b":1})", "") == "vocab.json: the id 1 of \"b\" is another token's too");
  CHECK(LoadError(replaced(end, R"("<|end|>":)"), "") ==
        "vocab.json: has no token \"<|endoftext|>\", which ends a document");
  CHECK(LoadError(vocab, "#version: 0.2\nz q\n") ==
        "merges.txt:2: error: \"zq\" (the result of the merge) is not in the vocabulary; are the two files "
        "of one "
        "tokenizer?");
  CHECK(LoadError(vocab, "zq a\n").starts_with("merges.txt:1: error: \"zq\" (of the merge)"));
  for (const char* line : {"ab\n", "a b c\n", " ab\n", "ab \n", "\nt h\n"}) {
    CHECK(LoadError(vocab, line).find("merges.txt:1: error: ") == 0);
  }
  CHECK(LoadError(vocab, "t h\nt h\n") == "merges.txt:2: error: the merge \"t h\" appears a second time");
  CHECK(
      Gpt2Bpe::Load(TestData("gpt2"), TestData("gpt2/merges.txt")).status().message().find("regular file") !=
      absl::string_view::npos);
}

}  // namespace engine::data
