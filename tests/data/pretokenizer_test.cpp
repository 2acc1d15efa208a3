#include "engine/data/pretokenizer.h"

#include <doctest/doctest.h>

namespace engine::data {
namespace {

std::vector<std::string_view> Pieces(std::string_view text) {
  static const absl::StatusOr<Pretokenizer> pretokenizer = Pretokenizer::Create();
  REQUIRE(pretokenizer.ok());
  std::vector<std::string_view> pieces;
  REQUIRE(pretokenizer->Split(text, &pieces).ok());
  return pieces;
}

using Expected = std::vector<std::string_view>;

}  // namespace

TEST_CASE("pieces of text") {
  CHECK(Pieces("").empty());
  CHECK(Pieces("Hello world's 42nd!") == Expected{"Hello", " world", "'s", " 42", "nd", "!"});
  CHECK(Pieces("it'S") == Expected{"it", "'", "S"});
  CHECK(Pieces("a  b") == Expected{"a", " ", " b"});
  CHECK(Pieces("a \n b  ") == Expected{"a", " \n", " b", "  "});
  CHECK(Pieces("a\n\nb") == Expected{"a", "\n", "\n", "b"});
}

TEST_CASE("white space is Unicode's White_Space, no more and no less") {
  for (std::string_view space :
       {"\t", "\r", "\x0b", "\xC2\x85", "\xC2\xA0", "\xE1\x9A\x80", "\xE2\x80\x80", "\xE2\x80\x8A",
        "\xE2\x80\xA8", "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"}) {
    const std::string text = std::string(space) + "!";
    CHECK(Pieces(text) == Expected{space, "!"});
  }
  // U+001C, U+180E, U+200B and U+FEFF are not: they join the punctuation.
  for (std::string_view other : {"\x1c", "\xE1\xA0\x8E", "\xE2\x80\x8B", "\xEF\xBB\xBF"}) {
    const std::string text = std::string(other) + "!";
    CHECK(Pieces(text) == Expected{text});
  }
}

TEST_CASE("runs of bytes that are not UTF-8 are pieces") {
  CHECK(Pieces("a\xff\xfe b") == Expected{"a", "\xff\xfe", " b"});
  CHECK(Pieces("\xE4\xB8") == Expected{"\xE4\xB8"});
}

}  // namespace engine::data
