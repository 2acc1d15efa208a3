// Text of tokens as they come, up to a stop string.
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/tokenizer.h"

namespace engine::generate {

// A token's text may depend on those before it, a character may be of several tokens, and a stop string may begin in one and
// end in another. So text is given out once it is certain, and all pieces together are the text of all tokens, up to the first
// stop string. Without a tokenizer the text is ids, with a blank between two.
class TextStream {
 public:
  // `before`: the tokens that these continue, whose text is not given out. Stop strings are not empty. `tokenizer` may be null, and
  // must outlive this.
  // Errors are those of data::Tokenizer::Decode.
  static absl::StatusOr<TextStream> Begin(const data::Tokenizer* tokenizer,
                                          std::span<const std::int32_t> before,
                                          std::vector<std::string> stops);

  // The text that is certain now and was not before: without the beginning of a character, and of a stop string. Once it has
  // stopped there is no more.
  absl::StatusOr<std::string> Add(std::int32_t token);
  // What was held back, since nothing follows.
  std::string Finish();
  // A stop string has come.
  bool has_stopped() const { return has_stopped_; }

 private:
  TextStream(const data::Tokenizer* tokenizer, std::vector<std::string> stops)
      : tokenizer_(tokenizer), stops_(std::move(stops)) {}
  absl::StatusOr<std::string> TextOf(std::int32_t token);
  absl::Status Shorten();
  std::string UpToStop(std::string text);

  const data::Tokenizer* tokenizer_;
  std::vector<std::string> stops_;
  std::vector<std::int32_t> window_;  // the last tokens: those that text may still depend on
  std::size_t taken_ = 0;             // bytes of the window's text that have been given out
  std::string incomplete_;            // the window's text behind them, where a character is not whole
  std::string held_;                  // text that may be the beginning of a stop string
  bool is_first_ = true;              // no id has been written
  bool has_stopped_ = false;
};

// How many bytes of `text` stand before a character at its end of which bytes are missing.
std::size_t WholeCharacters(std::string_view text);

// The text of ids, without the beginning of a character at its end; ids with blanks between them without a tokenizer.
absl::StatusOr<std::string> TextOfIds(const data::Tokenizer* tokenizer, std::span<const std::int32_t> ids);

}  // namespace engine::generate
