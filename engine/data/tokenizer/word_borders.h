// Where a text without pre-tokenizers may be cut into words all the same: between two characters which no merge makes
// neighbours, as the last of its left token and the first of its right one. A BPE joins nothing over such a place, and what it does on one side does not depend
// on the other, so the ids of the parts are those of the whole. In vocabularies of SentencePiece's kind that is before most
// blank symbols and at most signs.
#pragma once

#include <absl/container/flat_hash_set.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/data/tokenizer/description.h"

namespace engine::tokenizer {

class WordBorders {
 public:
  // None where the model's words cannot be cut. `spaces_are_blanks`: a space in the texts will become a blank symbol.
  static std::optional<WordBorders> Of(const Model& model, bool spaces_are_blanks);

  // Appends the ends of the parts of `text`, which is UTF-8 of less than 4 GiB.
  void Cut(std::string_view text, std::vector<std::uint32_t>* ends) const;

  // Whether a blank symbol before this text, which is not empty, belongs to its first part.
  bool JoinsBlankBefore(std::string_view text) const;

 private:
  // ASCII characters by themselves, the blank symbol, and all others, which join each other and ASCII.
  static constexpr std::size_t kBlank = 128;
  static constexpr std::size_t kOther = 129;
  static constexpr std::size_t kKinds = 130;
  static constexpr std::uint8_t kNoCharacter = 0xFF;
  struct Ends {  // kinds of a token's first and last character
    std::uint8_t first;
    std::uint8_t last;
  };
  static std::vector<Ends> EndsOf(const BpeModel& model);

  enum Joins : std::uint8_t { kNo, kYes, kSome };  // some: those of joins_blank_
  using Row = std::array<Joins, kKinds>;           // by what is behind

  std::array<Row, kKinds> joins_ = {};         // by what is before
  absl::flat_hash_set<char32_t> joins_blank_;  // other characters before a blank symbol inside of a token
};

}  // namespace engine::tokenizer
