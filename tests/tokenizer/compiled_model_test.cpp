#include "engine/data/tokenizer/compiled_model.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "engine/base/status.h"
#include "engine/data/tokenizer/pipeline.h"
#include "engine/data/tokenizer/read_json.h"
#include "tests/data/temp_dir.h"

namespace engine::tokenizer {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSmallTokenizer =
    R"({"version": "1.0", "added_tokens": [{"id": 9, "content": "<\u00e9>",
  "single_word": false, "lstrip": true, "rstrip": false, "normalized": false, "special": true}],
  "normalizer": {"type": "Replace", "pattern": {"String": "\""}, "content": "b"}, "pre_tokenizer": null,
  "post_processor": null, "decoder": {"type": "Fuse"},
  "model": {"type": "BPE", "unk_token": "?", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 4, "abc": 5, "?": 7, "\u00e9": 3},
            "merges": ["a b", ["ab", "c"]]}})";

std::vector<std::int32_t> IdsOfText(const absl::StatusOr<Description>& description, std::string_view text) {
  REQUIRE_MESSAGE(description.ok(), Message(description.status()));
  const absl::StatusOr<std::unique_ptr<Pipeline>> pipeline = Pipeline::Make(Description(*description));
  REQUIRE_MESSAGE(pipeline.ok(), Message(pipeline.status()));
  std::vector<std::int32_t> ids;
  REQUIRE((*pipeline)->Encode(text, {.special_tokens = true}, &ids).ok());
  return ids;
}

}  // namespace

TEST_CASE("a tokenizer.json is the same from its compiled copy") {
  const data::TempDir folder;
  const std::string path = folder.path() + "/tokenizer.json";
  data::WriteFile(path, std::string(kSmallTokenizer));
  const std::vector<std::int32_t> expected = {5, 3, 9, 7, 4, 0};
  constexpr std::string_view kItsText = "abc\u00e9 <\u00e9>xa\"a";
  CHECK(IdsOfText(ReadTokenizerJson(path), kItsText) == expected);
  CHECK(IdsOfText(ReadTokenizerJson(path, folder.path()), kItsText) == expected);  // writes it
  const std::string compiled = CompiledFile(folder.path(), Contents(kSmallTokenizer));
  const std::string bytes = data::ReadFile(compiled);
  REQUIRE(ReadCompiled(compiled, Contents(kSmallTokenizer)).has_value());
  const fs::file_time_type written = fs::last_write_time(compiled);
  CHECK(IdsOfText(ReadTokenizerJson(path, folder.path()), kItsText) == expected);  // reads it
  CHECK(fs::last_write_time(compiled) == written);
  CHECK(std::distance(fs::directory_iterator(fs::path(compiled).parent_path()), {}) == 1);

  SUBCASE("with each flag of its added tokens") {
    std::vector<AddedToken> tokens(6);
    for (int i = 0; i < 6; ++i) {
      tokens[static_cast<std::size_t>(i)] = {.id = 20 + i,
                                             .content = std::string(static_cast<std::size_t>(1 + 9 * i), 'x'),
                                             .single_word = i == 1,
                                             .lstrip = i == 2,
                                             .rstrip = i == 3,
                                             .normalized = i == 4,
                                             .special = i == 5};
    }
    BpeModel model;
    REQUIRE(model.vocabulary.Add("a", 0));
    WriteCompiled(compiled, Contents("a"), "{}", model, tokens);
    const std::optional<CompiledModel> read = ReadCompiled(compiled, Contents("a"));
    REQUIRE(read.has_value());
    REQUIRE(read->added_tokens.size() == tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      CAPTURE(i);
      const AddedToken& token = read->added_tokens[i];
      CHECK(token.id == tokens[i].id);
      CHECK(token.content == tokens[i].content);
      CHECK(token.single_word == tokens[i].single_word);
      CHECK(token.lstrip == tokens[i].lstrip);
      CHECK(token.rstrip == tokens[i].rstrip);
      CHECK(token.normalized == tokens[i].normalized);
      CHECK(token.special == tokens[i].special);
    }
  }
  SUBCASE("not where it is of other contents") {
    const std::string other = std::string(kSmallTokenizer) + " ";
    CHECK(!ReadCompiled(compiled, Contents(other)).has_value());
    CHECK(!ReadCompiled(compiled + "x", Contents(kSmallTokenizer)).has_value());
  }
  SUBCASE("not where a byte of it is another, the version's among them; then it is written anew") {
    for (std::size_t at = 0; at < bytes.size(); ++at) {
      CAPTURE(at);
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ 1);
      data::WriteFile(compiled, damaged);
      REQUIRE(!ReadCompiled(compiled, Contents(kSmallTokenizer)).has_value());
    }
    CHECK(IdsOfText(ReadTokenizerJson(path, folder.path()), kItsText) == expected);
    CHECK(data::ReadFile(compiled) == bytes);
  }
  SUBCASE("not where its end is missing") {
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      data::WriteFile(compiled, bytes.substr(0, size));
      REQUIRE(!ReadCompiled(compiled, Contents(kSmallTokenizer)).has_value());
    }
  }
  SUBCASE("and the tokenizer is read where no copy can be written") {
    const std::string file = folder.path() + "/file";
    data::WriteFile(file, "");
    CHECK(IdsOfText(ReadTokenizerJson(path, file), kItsText) == expected);
  }
}

}  // namespace engine::tokenizer
