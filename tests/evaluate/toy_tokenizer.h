// A tokenizer whose tokens reach over words: the longest one at each place.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/status.h"
#include "engine/data/tokenizer.h"

namespace engine::evaluate {

class ToyTokenizer final : public data::Tokenizer {
 public:
  // Ids from 256 on of these texts, beside those of all bytes.
  ToyTokenizer(std::map<std::string, std::int32_t> tokens, std::int32_t end)
      : tokens_(std::move(tokens)), end_(end) {}

  absl::Status EncodeTo(std::string_view text, std::vector<std::int32_t>* ids) const override {
    while (!text.empty()) {
      size_t size = 1;
      std::int32_t id = static_cast<unsigned char>(text[0]);
      for (const auto& [token, its] : tokens_) {
        if (token.size() <= size || !text.starts_with(token)) continue;
        size = token.size();
        id = its;
      }
      ids->push_back(id);
      text.remove_prefix(size);
    }
    return absl::OkStatus();
  }
  absl::Status EncodeMarked(std::string_view, std::span<const std::pair<size_t, size_t>>,
                            std::vector<std::int32_t>*, std::vector<std::uint8_t>*) const override {
    return Unimplemented("a toy marks nothing");
  }
  absl::StatusOr<std::string> Decode(std::span<const std::int32_t>) const override {
    return Unimplemented("a toy decodes nothing");
  }
  std::int64_t vocab_size() const override { return end_ + 1; }
  std::int32_t end_of_document() const override { return end_; }

 private:
  const std::map<std::string, std::int32_t> tokens_;
  const std::int32_t end_;
};

}  // namespace engine::evaluate
