// Where a text without pre-tokenizers may be cut into words all the same. Vocabularies of SentencePiece's kind mark the
// beginning of a word by a blank symbol, and no token of theirs, or few, goes on over one. A BPE joins nothing over a place
// that no token crosses, and what it does on one side does not depend on the other, so the ids of the parts are those of
// the whole.
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
  // None where the model's words cannot be cut.
  static std::optional<WordBorders> Of(const Model& model);

  // Appends the ends of the parts of `text`: before each blank symbol, but for one behind another or behind a
  // character that stands before one inside of a token; and the end of all.
  void Cut(std::string_view text, std::vector<std::uint32_t>* ends) const;

 private:
  bool JoinsBlank(std::string_view before) const;

  std::array<bool, 256> joins_byte_ = {};      // ASCII characters before a blank symbol inside of a token
  absl::flat_hash_set<char32_t> joins_other_;  // other ones; the blank symbol itself is always one
};

}  // namespace engine::tokenizer
