// Where a text without pre-tokenizers may be cut into words all the same: between two characters that stand beside each
// other in no token which merges make. A BPE joins nothing over such a place, and what it does on one side does not depend
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
  // None where the model's words cannot be cut.
  static std::optional<WordBorders> Of(const Model& model);

  // Appends the ends of the parts of `text`, which is UTF-8.
  void Cut(std::string_view text, std::vector<std::uint32_t>* ends) const;

 private:
  // ASCII characters by themselves, the blank symbol, and all others, which join each other and ASCII.
  static constexpr std::size_t kBlank = 128;
  static constexpr std::size_t kOther = 129;
  static constexpr std::size_t kKinds = 130;

  std::array<std::array<bool, kKinds>, kKinds> joins_ = {};  // [before][behind]
  absl::flat_hash_set<char32_t> joins_blank_;  // other characters before a blank symbol inside of a token
};

}  // namespace engine::tokenizer
