// SentencePiece's precompiled table of characters: strings and what they become. The table is a length in bytes (u32,
// little endian), so many bytes of a double-array trie (darts-clone, u32 units), then texts that end with a zero byte; a
// string's value in the trie is where its text begins.
#pragma once

#include <absl/status/statusor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace engine::tokenizer {

class CharsMap {
 public:
  CharsMap() = default;  // maps nothing
  // DataLoss where the table is cut off or leads out of itself.
  static absl::StatusOr<CharsMap> Parse(std::string_view table);

  struct Match {
    std::size_t bytes;  // of the string
    std::string_view becomes;
  };
  // The value of a string of one ASCII character.
  const std::optional<Match>& OfAscii(char c) const { return of_ascii_[static_cast<unsigned char>(c)]; }
  // The shortest and the longest string of the table that `text` begins with.
  std::optional<Match> Shortest(std::string_view text) const { return Find(text, /*longest=*/false); }
  std::optional<Match> Longest(std::string_view text) const { return Find(text, /*longest=*/true); }

 private:
  std::optional<Match> Find(std::string_view text, bool longest) const;
  std::vector<std::uint32_t> units_;
  std::shared_ptr<const std::string> texts_ = std::make_shared<std::string>();  // of which matches are parts
  std::array<std::optional<Match>, 128> of_ascii_ = {};
};

}  // namespace engine::tokenizer
