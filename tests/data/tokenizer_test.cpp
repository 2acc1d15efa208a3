#include "engine/data/tokenizer.h"

#include <doctest/doctest.h>

#include <optional>
#include <utility>

#include "engine/base/status.h"

namespace engine::data {

TEST_CASE("bytes are their own ids, and 256 ends a document") {
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = MakeTokenizer({});
  REQUIRE(tokenizer.ok());
  CHECK((*tokenizer)->vocab_size() == 257);
  CHECK((*tokenizer)->end_of_document() == 256);
  std::vector<std::int32_t> ids = {5};
  REQUIRE((*tokenizer)->EncodeTo(std::string_view("a\0\xff", 3), &ids).ok());
  CHECK(ids == std::vector<std::int32_t>{5, 97, 0, 255});
  const std::vector<std::int32_t> back = {97, 0, 255, 256, 98, 257, -1};
  CHECK(*(*tokenizer)->Decode(back) == std::string("a\0\xff"
                                                   "b\xEF\xBF\xBD\xEF\xBF\xBD",
                                                   10));
}

TEST_CASE("tokenizers that cannot be made") {
  CHECK(Message(MakeTokenizer({.kind = "word"}).status()) ==
        "tokenizer \"word\" is unknown; there are byte, gpt2, file and none");
  CHECK(Message(MakeTokenizer({.kind = "gpt2", .vocab_file = "v.json"}).status())
            .ends_with("merges is not given"));
  CHECK(absl::IsNotFound(
      MakeTokenizer({.kind = "gpt2", .vocab_file = "/no/v.json", .merges_file = "/no/m.txt"}).status()));
}

TEST_CASE("the tokens that begin and end a document are those that the files tell, or others by name") {
  recipe::Tokenizer wanted = {.kind = "file",
                              .path = ENGINE_SOURCE_DIR "/tests/tokenizer/sentencepiece/bpe.model"};
  const auto begin_and_end = [&wanted] {
    const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = MakeTokenizer(wanted);
    REQUIRE_MESSAGE(tokenizer.ok(), Message(tokenizer.status()));
    return std::pair((*tokenizer)->beginning_of_document(), (*tokenizer)->end_of_document());
  };
  CHECK(begin_and_end() == std::pair(std::optional(1), 2));
  wanted.beginning_of_document = "</s>";
  CHECK(begin_and_end() == std::pair(std::optional(2), 2));
  wanted.end_of_document = "<s>";
  CHECK(begin_and_end() == std::pair(std::optional(2), 1));
  wanted.beginning_of_document = "no such token";
  CHECK(Message(MakeTokenizer(wanted).status())
            .ends_with("has no token \"no such token\" to begin a document"));
}

}  // namespace engine::data
