// Where tokens stand in the text that they were made of.
#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/data/tokenizer/added_tokens.h"
#include "engine/data/tokenizer/description.h"
#include "engine/data/tokenizer/normalizer_chain.h"

namespace engine::tokenizer {

using ByteSpan = std::pair<std::size_t, std::size_t>;  // [begin, end)

// Finds places by spelling: the strings of the ids, one behind the other, must be the normalized text. So it knows nothing of how ids are
// made, and where it does not come out even, that is an error and never a place that is a bit off.
class TokenPlaces {
 public:
  // `description` must outlive it.
  static absl::StatusOr<TokenPlaces> Make(const Description& description);

  // Sets marks[i] to 1 where the i-th id has a byte of its text inside one of `spans`, else to 0. `ids` are those of `text`, special
  // tokens in it being tokens, without a template around them; `spans` are in order and do not overlap. A token that lies on both
  // sides of a border is marked, as in Hugging Face's library. A character that normalization makes of text on both sides of a
  // border belongs to what is before it. InvalidArgument: the tokens do not spell the text, so that their places cannot be told.
  absl::Status Mark(std::string_view text, std::span<const std::int32_t> ids, std::span<const ByteSpan> spans,
                    std::vector<std::uint8_t>* marks) const;

 private:
  struct Walk;  // through the ids of one text
  explicit TokenPlaces(const Description& description) : description_(&description) {}
  absl::Status Prepare();
  absl::Status MarkBetween(std::string_view text, std::size_t begin, Walk* walk) const;
  absl::StatusOr<std::size_t> PlaceOf(std::string_view text, std::string_view normalized,
                                      std::size_t border) const;
  // How much of `text` the id spells, which may be nothing; nullopt: it does not begin with the token.
  std::optional<std::size_t> Spelled(std::int32_t id, std::string_view text, bool is_first) const;
  std::optional<std::size_t> SpelledBy(std::string_view token, std::string_view text, bool is_first) const;
  bool IsUnknown(std::int32_t id) const { return id == unknown_ && id != kNoToken; }

  const Description* description_;
  std::optional<NormalizerChain> normalizer_;
  AddedTokenFinder raw_tokens_;
  absl::flat_hash_map<std::int32_t, std::string>
      added_;                 // the text by which added tokens are found in normalized text
  bool shows_bytes_ = false;  // tokens are bytes, shown as GPT-2's characters
  bool byte_fallback_ = false;
  std::string blank_;   // what stands for a blank in tokens, where the text has a blank
  std::string prefix_;  // of tokens that continue a word, and
  std::string suffix_;  // of those that end one: both are in no text
  std::int32_t unknown_ = kNoToken;
};

}  // namespace engine::tokenizer
