// A tokenizer made ready from its description: text to ids and back.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/tokenizer/added_tokens.h"
#include "engine/data/tokenizer/decoder_chain.h"
#include "engine/data/tokenizer/description.h"
#include "engine/data/tokenizer/normalizer_chain.h"
#include "engine/data/tokenizer/raw_parts.h"
#include "engine/data/tokenizer/word_borders.h"
#include "engine/data/tokenizer/word_cache.h"
#include "engine/data/tokenizer/word_cutter.h"
#include "engine/data/tokenizer/word_encoder.h"

namespace engine::tokenizer {

struct EncodeOptions {
  bool special_tokens = false;  // special tokens that stand in the text are tokens, not characters
  bool add_template = false;    // the template's ids around those of the text
};

class Pipeline {
 public:
  // InvalidArgument or Unimplemented: what of the description cannot be made, with its source.
  static absl::StatusOr<std::unique_ptr<Pipeline>> Make(Description description);
  ~Pipeline();

  // Appends the ids of `text`, at most 2 GiB. Where words are bytes, any text will do: a run of bytes that is no UTF-8 is
  // a word of its own, and text on either side of it is taken as if it stood alone. Elsewhere such text is an error.
  // Thread safe, as all members are. Threads share the words that they have learned, and wait for nothing for long.
  absl::Status Encode(std::string_view text, const EncodeOptions& options,
                      std::vector<std::int32_t>* ids) const;

  // The text of ids. An id that is no token's is U+FFFD; special tokens are left out where `skip_special`, and `skip`
  // always. Where words are bytes, a text that ends inside a character ends in a part of its bytes. ResourceExhausted: a
  // regular expression of a decoder takes too long.
  absl::StatusOr<std::string> Decode(std::span<const std::int32_t> ids, bool skip_special,
                                     std::int32_t skip = kNoToken) const;

  const Description& description() const { return description_; }
  bool is_of_bytes() const { return of_bytes_; }
  std::int64_t vocab_size() const { return vocab_size_; }  // the largest id plus 1

 private:
  struct Workspace;
  struct WorkspaceLease;
  struct Token {
    std::string_view text;  // as decoders take it; where they only join bytes: those
    bool is_used = false;
    bool is_special = false;
  };
  explicit Pipeline(Description description);
  absl::Status Prepare();
  absl::Status MakeFinders();
  const std::vector<Token>& Tokens() const;
  void MakeTokens() const;

  absl::Status EncodeValid(std::string_view text, bool is_first, const EncodeOptions& options,
                           Workspace* work, std::vector<std::int32_t>* ids) const;
  // Below, bytes behind `text` may be read up to `readable`, whatever they are.
  absl::Status EncodeBetween(std::string_view text, bool is_first, const char* readable,
                             const EncodeOptions& options, Workspace* work,
                             std::vector<std::int32_t>* ids) const;
  // Of text in which spaces stand for blank symbols yet (blanks_).
  absl::Status EncodeWithSpaces(std::string_view text, bool is_first, const char* readable, Workspace* work,
                                std::vector<std::int32_t>* ids) const;
  absl::Status EncodePiece(std::string_view text, bool is_first, const char* readable, Workspace* work,
                           std::vector<std::int32_t>* ids) const;
  // Of text that is not normalized yet (raw_parts_).
  absl::Status EncodeRaw(std::string_view text, bool is_first, const char* readable, Workspace* work,
                         std::vector<std::int32_t>* ids) const;

  // What is still to be done with words that are not in the cache.
  enum class Words : std::uint8_t { kNormalized, kWithSpaces, kRaw };
  struct Parts {
    Words words;
    std::string_view text;
    std::span<const std::uint32_t> ends;
    const std::uint32_t* begins = nullptr;  // as many; null: where the one before ends
    std::uint32_t begin = 0;                // then of the first
  };
  absl::Status EncodeParts(const Parts& parts, const char* readable, Workspace* work,
                           std::vector<std::int32_t>* ids) const;
  // Of a word that the cache of short words does not have.
  absl::Status EncodeWord(Words words, std::string_view word, const WordCache::Key& key,
                          WordCache::Place place, Workspace* work, std::vector<std::int32_t>* ids) const;
  absl::Status EncodeAnew(Words words, std::string_view word, bool is_first, Workspace* work,
                          std::vector<std::int32_t>* ids) const;

  Description description_;
  bool of_bytes_ = false;
  std::optional<NormalizerChain> normalizer_;
  std::optional<WordCutter> cutter_;
  std::optional<Scanner> scanner_;      // all that the cutter does
  std::optional<WordBorders> borders_;  // where words may be cut further
  // Set where all that normalizers and pre-tokenizers do is to make blank symbols of spaces and perhaps to put one before
  // a text. Then only words that are not in the cache are normalized.
  struct Blanks {
    PrependScheme prepends = PrependScheme::kNever;
    bool unless_there = false;  // not before a text that begins with one
  };
  static std::optional<Blanks> BlanksOf(const Description& description);
  std::optional<Blanks> blanks_;
  std::optional<RawParts> raw_parts_;
  std::unique_ptr<WordEncoder> encoder_;
  std::optional<DecoderChain> decoder_;
  AddedTokenFinder raw_tokens_;
  AddedTokenFinder normalized_tokens_;
  std::int64_t vocab_size_ = 0;
  // What decoding needs, made when a text is decoded for the first time.
  mutable std::once_flag tokens_once_;
  mutable std::vector<Token> token_of_id_;
  mutable std::string token_bytes_;  // that are shown in the vocabulary as other characters

  mutable WordCache words_;  // that all threads have learned
  mutable LongWordCache long_words_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Workspace>> idle_;  // of threads that are not encoding
};

}  // namespace engine::tokenizer
