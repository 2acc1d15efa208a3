// Where a text may be cut before it is normalized, so that each part by itself becomes the same ids as within the text. A
// part that came lately then needs no normalizer, no pre-tokenizer and no model. Two kinds of tokenizers can be cut so:
// those that drop white space and isolate signs, as BERT's, around each of them; and those that make words of blanks and
// what follows them, as Unigram models with a Metaspace, before blanks between a printable ASCII character and ASCII.
#pragma once

#include <absl/status/statusor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/data/tokenizer/description.h"
#include "engine/data/tokenizer/normalizer_chain.h"

namespace engine::tokenizer {

class RawParts {
 public:
  // None where it is not known that a text may be cut.
  static absl::StatusOr<std::optional<RawParts>> Of(const Description& description,
                                                    const NormalizerChain& normalizer);

  // Appends the parts' begins and ends. What lies between two parts becomes nothing.
  void Cut(std::string_view text, std::vector<std::uint32_t>* begins, std::vector<std::uint32_t>* ends) const;

  // The first part and the last may become something else than the same bytes in the middle of a text.
  bool margins_differ() const { return kind_ == Kind::kBeforeBlanks; }

 private:
  enum class Kind : std::uint8_t { kAroundSigns, kBeforeBlanks };
  enum class Class : std::uint8_t { kOther, kBlank, kSign };  // signs: printable ASCII, for kBeforeBlanks

  void CutAroundSigns(std::string_view text, std::vector<std::uint32_t>* begins,
                      std::vector<std::uint32_t>* ends) const;
  void CutBeforeBlanks(std::string_view text, std::vector<std::uint32_t>* begins,
                       std::vector<std::uint32_t>* ends) const;

  Kind kind_ = Kind::kAroundSigns;
  std::array<Class, 256> classes_ = {};
  bool isolates_ideographs_ = false;  // of U+4E00 to U+9FFF
};

}  // namespace engine::tokenizer
