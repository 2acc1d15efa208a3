#include "engine/data/tokenizer/token_places.h"

#include <doctest/doctest.h>

#include <random>

#include "engine/base/status.h"
#include "engine/data/tokenizer/pipeline.h"
#include "engine/data/tokenizer/read_files.h"

namespace engine::tokenizer {
namespace {

struct Placed {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> marks;
};

Placed PlacedBy(const Pipeline& pipeline, std::string_view text, const std::vector<ByteSpan>& spans) {
  const absl::StatusOr<TokenPlaces> places = TokenPlaces::Make(pipeline.description());
  REQUIRE(places.ok());
  Placed placed;
  REQUIRE(pipeline.Encode(text, {.special_tokens = true}, &placed.ids).ok());
  const absl::Status status = places->Mark(text, placed.ids, spans, &placed.marks);
  REQUIRE_MESSAGE(status.ok(), Message(status));
  return placed;
}

std::unique_ptr<Pipeline> PipelineOf(absl::StatusOr<Description> description) {
  REQUIRE_MESSAGE(description.ok(), Message(description.status()));
  return *Pipeline::Make(*std::move(description));
}

std::unique_ptr<Pipeline> Gpt2() {
  const std::string folder = ENGINE_SOURCE_DIR "/tests/tokenizer/gpt2/";
  return PipelineOf(ReadGpt2Files(folder + "vocab.json", folder + "merges.txt"));
}

// The place of a token is what it adds to the text of the tokens before it: the decoder knows nothing of how places are found.
void CheckAgainstDecoder(const Pipeline& pipeline, const std::vector<std::string>& pieces) {
  std::mt19937 random(3);
  const auto below = [&random](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  int on_borders = 0;
  for (int round = 0; round < 200; ++round) {
    std::string text = "a";
    for (std::size_t k = 1 + below(8); k > 0; --k) text += pieces[below(pieces.size())];
    const std::size_t begin = below(text.size());
    const std::size_t end = begin + 1 + below(text.size() - begin);
    const Placed placed = PlacedBy(pipeline, text, {{begin, end}});
    std::size_t at = 0;
    for (std::size_t i = 0; i < placed.ids.size(); ++i) {
      const std::size_t next = pipeline.Decode(std::span(placed.ids).first(i + 1), false)->size();
      CAPTURE(text);
      CAPTURE(i);
      CHECK(placed.marks[i] == (std::max(at, begin) < std::min(next, end) ? 1 : 0));
      on_borders += (at < begin && begin < next) || (at < end && end < next) ? 1 : 0;
      at = next;
    }
    CHECK(at == text.size());
  }
  CHECK(on_borders > 10);
}

}  // namespace

TEST_CASE("places of byte-level tokens, which borders may cut") {
  CheckAgainstDecoder(*Gpt2(), {"the", " and", "\n\n", "  ", "é", "🦙", "1234", "'s", " of the"});
}

TEST_CASE("places of SentencePiece's tokens, with the blank that is put in front") {
  const std::string folder = ENGINE_SOURCE_DIR "/tests/tokenizer/sentencepiece/";
  for (const char* model : {"bpe.model", "unigram.model"})
    CheckAgainstDecoder(*PipelineOf(ReadSentencePiece(folder + model)),
                        {"the", " and", " of", "er", ".", " a"});
}

TEST_CASE("a composed character belongs to what is before a border inside of it") {
  Description description;
  description.source = "test";
  BpeModel model;
  for (const char* token : {"a", "b", "\u00E9", "ab"}) model.vocabulary.Add(token, model.vocabulary.size());
  model.merges.Put({.left = 0, .right = 1, .product = 3, .rank = 0});
  description.model = model;
  description.normalizers = {ToNormalForm{}};
  description.added_tokens = {{.id = 4, .content = "<x>", .special = true}};
  const std::unique_ptr<Pipeline> pipeline = PipelineOf(description);
  const std::string text =
      "<x>ab"
      "e"
      "\u0301"
      "ab";  // bytes: <x> 0-2, ab 3-4, e 5, acute 6-7, ab 8-9
  using Marks = std::vector<std::uint8_t>;
  CHECK(PlacedBy(*pipeline, text, {}).ids == std::vector<std::int32_t>{4, 3, 2, 3});
  CHECK(PlacedBy(*pipeline, text, {{0, 3}}).marks == Marks{1, 0, 0, 0});
  CHECK(PlacedBy(*pipeline, text, {{4, 5}}).marks == Marks{0, 1, 0, 0});
  CHECK(PlacedBy(*pipeline, text, {{3, 6}}).marks == Marks{0, 1, 1, 0});
  CHECK(PlacedBy(*pipeline, text, {{6, 10}}).marks == Marks{0, 0, 0, 1});
  CHECK(PlacedBy(*pipeline, text, {{0, 1}, {9, 10}}).marks == Marks{1, 0, 0, 1});
}

TEST_CASE("ids that are not the text's are refused, not placed") {
  const std::unique_ptr<Pipeline> pipeline = Gpt2();
  const TokenPlaces places = *TokenPlaces::Make(pipeline->description());
  std::vector<std::int32_t> ids;
  REQUIRE(pipeline->Encode("the end", {}, &ids).ok());
  std::vector<std::uint8_t> marks;
  CHECK(places.Mark("the end", ids, {}, &marks).ok());
  CHECK(Message(places.Mark("the ending", ids, {}, &marks)).find("is not what its token -1 spells") !=
        std::string::npos);
  CHECK(Message(places.Mark("the", ids, {}, &marks)).find("the text has ended before its") !=
        std::string::npos);
  CHECK(Message(places.Mark("and end", ids, {}, &marks))
            .find("the text at \"and end\" is not what its token") != std::string::npos);
}

}  // namespace engine::tokenizer
