#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/base/status.h"
#include "engine/data/tokenizer/pipeline.h"
#include "engine/data/tokenizer/read_files.h"
#include "tests/data/temp_dir.h"

namespace engine::tokenizer {
namespace {

using data::ReadFile;
using data::TempDir;
using data::WriteFile;

std::string Gpt2Data(const std::string& name) { return ENGINE_SOURCE_DIR "/tests/tokenizer/gpt2/" + name; }

std::unique_ptr<Pipeline> MakeGpt2(const std::string& vocab, const std::string& merges) {
  absl::StatusOr<Description> description = ReadGpt2Files(vocab, merges);
  REQUIRE_MESSAGE(description.ok(), Message(description.status()));
  absl::StatusOr<std::unique_ptr<Pipeline>> pipeline = Pipeline::Make(*std::move(description));
  REQUIRE_MESSAGE(pipeline.ok(), Message(pipeline.status()));
  return *std::move(pipeline);
}

std::unique_ptr<Pipeline> SmallGpt2() { return MakeGpt2(Gpt2Data("vocab.json"), Gpt2Data("merges.txt")); }

std::vector<std::int32_t> EncodeGpt2(const Pipeline& pipeline, std::string_view text) {
  std::vector<std::int32_t> ids;
  REQUIRE(pipeline.Encode(text, {}, &ids).ok());
  return ids;
}

std::string Gpt2Error(const std::string& vocab, const std::string& merges) {
  const TempDir dir;
  WriteFile(dir / "vocab.json", vocab);
  WriteFile(dir / "merges.txt", merges);
  std::string message = Message(ReadGpt2Files(dir / "vocab.json", dir / "merges.txt").status());
  for (std::size_t at = 0; (at = message.find(dir.path() + "/")) != std::string::npos;) {
    message.erase(at, dir.path().size() + 1);
  }
  return message;
}

}  // namespace

TEST_CASE("ids are the oracle's, and text comes back") {
  const std::unique_ptr<Pipeline> bpe = SmallGpt2();
  std::ifstream file(Gpt2Data("oracle.json"));
  for (const nlohmann::json& oracle_case : nlohmann::json::parse(file)) {
    const std::string text = oracle_case["text"];
    CAPTURE(text);
    const std::vector<std::int32_t> ids = EncodeGpt2(*bpe, text);
    CHECK(ids == oracle_case["ids"].get<std::vector<std::int32_t>>());
    CHECK(*bpe->Decode(ids, false) == text);
  }
}

TEST_CASE("all occurrences of a pair are merged before a stronger pair that they make") {
  const TempDir dir;
  nlohmann::json vocab = nlohmann::json::parse(ReadFile(Gpt2Data("vocab.json")));
  for (const char* token : {"bc", "abc", "abca"}) {
    const std::size_t next_id = vocab.size();
    vocab.emplace(token, next_id);
  }
  WriteFile(dir / "vocab.json", vocab.dump());
  WriteFile(dir / "merges.txt", "b c\nabc a\na bc\n");
  const std::unique_ptr<Pipeline> bpe = MakeGpt2(dir / "vocab.json", dir / "merges.txt");
  CHECK(EncodeGpt2(*bpe, "abcabc") == std::vector<std::int32_t>{vocab["abc"], vocab["abc"]});
  CHECK(EncodeGpt2(*bpe, "abca") == std::vector<std::int32_t>{vocab["abca"]});
}

TEST_CASE(
    "the end of a document is a token, and in text it is characters unless special tokens are asked for") {
  const std::unique_ptr<Pipeline> bpe = SmallGpt2();
  const std::int32_t end = bpe->description().end_of_document.value();
  CHECK(bpe->description().beginning_of_document == end);
  CHECK(end == bpe->vocab_size() - 1);
  CHECK(EncodeGpt2(*bpe, "<|endoftext|>").size() > 1);
  std::vector<std::int32_t> ids;
  REQUIRE(bpe->Encode("a<|endoftext|>", {.special_tokens = true}, &ids).ok());
  CHECK(ids.size() == 2);
  CHECK(ids.back() == end);
  CHECK(*bpe->Decode(ids, /*skip_special=*/false) == "a<|endoftext|>");
  CHECK(*bpe->Decode(ids, /*skip_special=*/true) == "a");
  ids.push_back(static_cast<std::int32_t>(bpe->vocab_size()));
  CHECK(*bpe->Decode(ids, /*skip_special=*/false, end) == "a\uFFFD");
}

TEST_CASE("bytes that are not UTF-8 are kept") {
  const std::unique_ptr<Pipeline> bpe = SmallGpt2();
  std::string every_byte;
  for (int byte = 0; byte < 256; ++byte) every_byte += static_cast<char>(byte);
  for (const std::string& text :
       {std::string("the \xff\xfe the"), std::string("\xE4\xB8"), std::string("\xED\xA0\x80"),
        std::string("\xC0\xAFthe"), std::string("\xF4\x90\x80\x80"), every_byte, every_byte + every_byte}) {
    CHECK(*bpe->Decode(EncodeGpt2(*bpe, text), false) == text);
  }
  // The valid text on both sides is encoded as if it stood alone.
  std::vector<std::int32_t> expected = EncodeGpt2(*bpe, "the ");
  for (std::int32_t id : EncodeGpt2(*bpe, "\xff")) expected.push_back(id);
  for (std::int32_t id : EncodeGpt2(*bpe, " the")) expected.push_back(id);
  CHECK(EncodeGpt2(*bpe, "the \xff the") == expected);
}

TEST_CASE("a megabyte without a break is encoded in time that grows like its length") {
  const std::unique_ptr<Pipeline> bpe = SmallGpt2();
  constexpr std::size_t kBytes = 1 << 20;
  for (const char* unit : {"a", "the", " ", "!", "\xE4\xB8\x96", "1", "\xff"}) {
    std::string text;
    while (text.size() < kBytes) text += unit;
    CHECK(*bpe->Decode(EncodeGpt2(*bpe, text), false) == text);
  }
}

TEST_CASE("broken vocabularies and merges are located") {
  const std::string vocab = ReadFile(Gpt2Data("vocab.json"));
  const std::string end = R"("<|endoftext|>":)";
  const auto replaced = [&](const std::string& what, const std::string& with) {
    std::string changed = vocab;
    changed.replace(changed.find(what), what.size(), with);
    return changed;
  };
  CHECK(Gpt2Error(vocab, "#version: 0.2\n").empty());
  CHECK(Gpt2Error(vocab, "").empty());
  CHECK(Gpt2Error("{", "").starts_with("vocab.json:1:2: error: syntax error"));
  CHECK(Gpt2Error("[]", "") == "vocab.json: error: must be an object from token to id");
  // Deep enough that walking over the value would overflow the stack.
  const std::string deep = "{\"zzz\":" + std::string(1000000, '[') + std::string(1000000, ']') + "}";
  CHECK(Gpt2Error(deep, "") == "vocab.json:1: error: nested deeper than 64 levels");
  const std::string long_token(5000, 'q');
  CHECK(Gpt2Error("{\"" + long_token + "\":\"" + long_token + "\"}", "").size() < 300);
  CHECK(Gpt2Error(R"({"a":0})", "").starts_with("vocab.json: error: has no token \"\u0100\" for byte 0"));
  CHECK(Gpt2Error(R"({"a":1})", "") == "vocab.json: error: the id of \"a\" is 1; 1 tokens have ids 0 to 0");
  CHECK(Gpt2Error(R"({"a":"x"})", "").starts_with("vocab.json: error: the id of \"a\" is \"x\""));
  CHECK(Gpt2Error(R"({"a":-1})", "").starts_with("vocab.json: error: the id of \"a\" is -1"));
  CHECK(Gpt2Error(R"({"a":1,"b":1})", "") ==
        "vocab.json: error: the id 1 of \"b\" is another token's too, or the token stands twice");
  CHECK(Gpt2Error(replaced(end, R"("<|end|>":)"), "") ==
        "vocab.json: error: has no token \"<|endoftext|>\", which ends a document");
  CHECK(Gpt2Error(vocab, "#version: 0.2\nz q\n") ==
        "merges.txt:2: error: \"zq\" (the result of the merge) is not in the vocabulary; are the two of one "
        "tokenizer?");
  CHECK(Gpt2Error(vocab, "zq a\n").starts_with("merges.txt:1: error: \"zq\" (of the merge)"));
  for (const char* line : {"ab\n", "a b c\n", " ab\n", "ab \n", "\nt h\n"}) {
    CHECK(Gpt2Error(vocab, line).find("merges.txt:1: error: ") == 0);
  }
  CHECK(Gpt2Error(vocab, "t h\nt h\n") == "merges.txt:2: error: the merge \"t h\" appears a second time");
  CHECK(Message(ReadGpt2Files(Gpt2Data(""), Gpt2Data("merges.txt")).status()).find("regular file") !=
        std::string::npos);
}

}  // namespace engine::tokenizer
