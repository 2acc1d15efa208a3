#include "engine/data/tokenizer/added_tokens.h"

#include <doctest/doctest.h>

#include <random>

namespace engine::tokenizer {

TEST_CASE("added tokens are the longest at the leftmost places, whatever bytes they end in") {
  std::mt19937_64 random(5);
  const auto letters = [&](std::size_t kinds, std::size_t count) {
    std::string text;
    for (std::size_t i = 0; i < count; ++i) text += static_cast<char>('a' + random() % kinds);
    return text;
  };
  for (int round = 0; round < 300; ++round) {
    const std::size_t kinds = 2 + random() % 10;  // few last bytes are looked for otherwise than many
    std::vector<std::pair<std::string, AddedToken>> tokens;
    for (std::size_t i = 0; i < 1 + random() % 8; ++i) {
      AddedToken token;
      token.content = letters(kinds, 1 + random() % 4);
      token.id = static_cast<std::int32_t>(i);
      tokens.emplace_back(token.content, token);
    }
    const AddedTokenFinder finder(tokens);
    for (int i = 0; i < 20; ++i) {
      const std::string text = letters(kinds + 1, 1 + random() % 40);
      std::string expected;  // ids, and - for each byte between
      for (std::size_t at = 0; at < text.size();) {
        const std::pair<std::string, AddedToken>* longest = nullptr;
        for (const auto& token : tokens) {
          if (std::string_view(text).substr(at).starts_with(token.first) &&
              (longest == nullptr || token.first.size() > longest->first.size()))
            longest = &token;
        }
        expected += longest == nullptr ? "-" : std::to_string(longest->second.id);
        at += longest == nullptr ? 1 : longest->first.size();
      }
      std::vector<Segment> segments;
      finder.Cut(text, /*special=*/true, &segments);
      std::string found;
      for (const Segment& segment : segments)
        found += segment.id == kNoToken ? std::string(segment.text.size(), '-') : std::to_string(segment.id);
      CAPTURE(text);
      REQUIRE(found == expected);
    }
  }
}

}  // namespace engine::tokenizer
