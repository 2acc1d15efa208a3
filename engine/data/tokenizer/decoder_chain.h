// Decoders made ready: token strings to text.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/data/tokenizer/description.h"

namespace engine::tokenizer {

class DecoderChain {
 public:
  // Without decoders, tokens are joined by blanks where `has_decoder` is false. InvalidArgument, Unimplemented: a regular
  // expression that is not understood.
  static absl::StatusOr<DecoderChain> Make(const std::vector<Decoder>& decoders, bool has_decoder);
  DecoderChain(DecoderChain&&) noexcept;
  DecoderChain& operator=(DecoderChain&&) noexcept;
  ~DecoderChain();

  // Whether the text of tokens is the bytes that each of them shows, one behind the other.
  bool is_of_bytes() const;
  // The text of these token strings. ResourceExhausted: a regular expression takes too long on one of them.
  absl::StatusOr<std::string> Decode(std::vector<std::string> tokens) const;

 private:
  struct Step;
  DecoderChain();
  bool has_decoder_ = false;
  std::vector<std::unique_ptr<Step>> steps_;
};

}  // namespace engine::tokenizer
