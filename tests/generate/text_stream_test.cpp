#include "engine/generate/text_stream.h"

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/philox.h"

namespace engine::generate {
namespace {

std::unique_ptr<data::Tokenizer> StreamTokenizer(const std::string& kind) {
  const std::string gpt2 = std::string(ENGINE_SOURCE_DIR) + "/tests/tokenizer/gpt2/";
  absl::StatusOr<std::unique_ptr<data::Tokenizer>> made =
      data::MakeTokenizer(kind == "byte" ? recipe::Tokenizer{.kind = "byte"}
                                         : recipe::Tokenizer{.kind = "gpt2",
                                                             .vocab_file = gpt2 + "vocab.json",
                                                             .merges_file = gpt2 + "merges.txt"});
  REQUIRE_MESSAGE(made.ok(), Message(made.status()));
  return *std::move(made);
}

// Pieces with '|' between them, and '.' where it has stopped.
std::string Pieces(const data::Tokenizer* tokenizer, const std::vector<std::int32_t>& ids,
                   std::vector<std::string> stops = {}, const std::vector<std::int32_t>& before = {}) {
  absl::StatusOr<TextStream> stream = TextStream::Begin(tokenizer, before, std::move(stops));
  REQUIRE(stream.ok());
  std::string pieces;
  for (const std::int32_t id : ids) {
    const absl::StatusOr<std::string> piece = stream->Add(id);
    REQUIRE(piece.ok());
    pieces += *piece + "|";
  }
  return pieces + stream->Finish() + (stream->has_stopped() ? "." : "");
}

std::vector<std::int32_t> BytesOf(std::string_view text) {
  std::vector<std::int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

}  // namespace

TEST_CASE("text stream: characters come whole") {
  const auto bytes = StreamTokenizer("byte");
  CHECK(Pieces(bytes.get(), BytesOf("a\u00e9b\u20ac")) == "a||\u00e9|b|||\u20ac|");
  CHECK(Pieces(bytes.get(), BytesOf("a\xE2\x82")) == "a|||\xE2\x82");  // the rest never came
  CHECK(Pieces(bytes.get(), BytesOf("a\xFF\x62")) == "a|\xFF|b|");     // no beginning of anything
  CHECK(Pieces(bytes.get(), {97, 300, 98}) == "a||\uFFFDb|");          // an id without a text
  CHECK(Pieces(bytes.get(), BytesOf("\xA9x"), {}, BytesOf("caf\xC3")) == "\u00e9|x|");  // begun before
}

TEST_CASE("text stream: stop strings across tokens, and text that only seems to be one") {
  const auto bytes = StreamTokenizer("byte");
  CHECK(Pieces(bytes.get(), BytesOf("one two"), {" t"}) == "o|n|e|||||.");
  CHECK(Pieces(bytes.get(), BytesOf("a b c"), {" t"}) == "a|| b|| c|");
  CHECK(Pieces(bytes.get(), BytesOf("aab"), {"ab", "b"}) == "|a||.");  // the one that begins first
  CHECK(Pieces(bytes.get(), BytesOf("xyabz"), {"yabc", "ab"}) == "x|||y||.");
  CHECK(Pieces(bytes.get(), BytesOf("ab"), {"abc"}) == "||ab");
  CHECK(Pieces(bytes.get(), BytesOf("s"), {"s"}, BytesOf("sss")) == "|.");  // only what is new
  CHECK(Pieces(bytes.get(), BytesOf("\u20ac."), {"\xE2\x82\xAC"}) == "||||.");
  const auto gpt2 = StreamTokenizer("gpt2");
  std::vector<std::int32_t> ids;
  REQUIRE(gpt2->EncodeTo("the end. The rest", &ids).ok());
  const std::string pieces = Pieces(gpt2.get(), ids, {"d. T"});
  std::string text = pieces;
  std::erase(text, '|');
  CHECK(text == "the en.");
}

TEST_CASE("text stream: ids where there is no tokenizer") {
  CHECK(Pieces(nullptr, {5, 17}) == "5| 17|");
  CHECK(Pieces(nullptr, {5, 17}, {}, {3}) == " 5| 17|");
  CHECK(*TextOfIds(nullptr, std::vector<std::int32_t>{3, 4}) == "3 4");
  const auto bytes = StreamTokenizer("byte");
  CHECK(*TextOfIds(bytes.get(), BytesOf("caf\xC3")) == "caf");
}

// Random ids, whose tokens are any bytes: all pieces together are the text of all.
TEST_CASE("text stream: pieces are the text of all tokens") {
  const auto gpt2 = StreamTokenizer("gpt2");
  const PhiloxKey key = MakePhiloxKey(4, "text stream");
  for (std::uint64_t round = 0; round < 20; ++round) {
    std::vector<std::int32_t> ids;
    for (std::uint64_t i = 0; i < 300; ++i)
      ids.push_back(static_cast<std::int32_t>(PhiloxWord(key, i, round) % 299));
    absl::StatusOr<TextStream> stream = TextStream::Begin(gpt2.get(), {}, {});
    REQUIRE(stream.ok());
    std::string text;
    for (const std::int32_t id : ids) {
      const absl::StatusOr<std::string> piece = stream->Add(id);
      REQUIRE(piece.ok());
      text += *piece;
    }
    text += stream->Finish();
    CHECK(text == *gpt2->Decode(ids));
  }
}

}  // namespace engine::generate
