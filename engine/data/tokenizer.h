// Text to token ids and back.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/data/tokenizer/pipeline.h"
#include "engine/recipe/recipe.h"

namespace engine::data {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Appends the ids of `text`. Of bytes and byte-level tokens any text is accepted, and Decode gives back exactly it; where
  // tokens are characters, a text that is not UTF-8 is an error. No id is added at the beginning or the end, and a special
  // token in the text is characters. Safe to call from many threads, as all members are.
  virtual absl::Status EncodeTo(std::string_view text, std::vector<std::int32_t>* ids) const = 0;

  // The same as `options` say: special tokens in the text are tokens, and the ids of the tokenizer's template stand around it. Of bytes
  // there are neither.
  virtual absl::Status EncodeWith(const tokenizer::EncodeOptions& /*options*/, std::string_view text,
                                  std::vector<std::int32_t>* ids) const {
    return EncodeTo(text, ids);
  }

  // As EncodeTo, but special tokens in the text are tokens; and of each id a mark, 1 where a byte of its text is inside one of `spans`, which are
  // [begin, end) in bytes, in order and apart (tokenizer/token_places.h, with its errors). Replaces what the vectors hold.
  virtual absl::Status EncodeMarked(std::string_view text,
                                    std::span<const std::pair<std::size_t, std::size_t>> spans,
                                    std::vector<std::int32_t>* ids,
                                    std::vector<std::uint8_t>* marks) const = 0;

  // Bytes of the ids; cut at any id, so perhaps not UTF-8. The end of a document is no text; an id outside
  // the vocabulary (padding that a model may emit) becomes U+FFFD. ResourceExhausted: Pipeline::Decode.
  virtual absl::StatusOr<std::string> Decode(std::span<const std::int32_t> ids) const = 0;

  // How the vocabulary writes the token of this id: a special token as it stands in a text. Empty: it has no writing, or is none.
  virtual std::string Written(std::int32_t /*id*/) const { return ""; }

  virtual std::int64_t vocab_size() const = 0;  // unpadded, with the end of document
  virtual std::int32_t end_of_document() const = 0;
  // The token that the files beside the tokenizer call eos_token. In models for chats it ends a turn, in others mostly a document.
  virtual std::optional<std::int32_t> end_of_turn() const { return std::nullopt; }
  // The token that stands in front of a document, if the tokenizer has one; no text becomes it.
  virtual std::optional<std::int32_t> beginning_of_document() const { return std::nullopt; }
  // Says what is wrong with the file that would name that token; "" where nothing is.
  virtual std::string why_no_beginning() const { return ""; }
};

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(const recipe::Tokenizer& description);

// The files that it reads, of which some may not be there.
std::vector<std::string> FilesOf(const recipe::Tokenizer& description);

}  // namespace engine::data
