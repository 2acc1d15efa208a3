// Cuts text into the pieces within which GPT-2's byte-pair merges happen (Radford et al. 2019, encoder.py):
// words with the blank before them, numbers, punctuation, contractions, white space.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string_view>
#include <vector>

namespace engine::data {

class Pretokenizer {
 public:
  static absl::StatusOr<Pretokenizer> Create();
  Pretokenizer(Pretokenizer&&) noexcept;
  Pretokenizer& operator=(Pretokenizer&&) noexcept;
  ~Pretokenizer();

  // Appends the pieces of `text`, which together are all of it; they point into it. A run of bytes that is
  // not UTF-8 is a piece of its own, and text on either side is cut as if it stood alone. Thread safe.
  absl::Status Split(std::string_view text, std::vector<std::string_view>* pieces) const;

 private:
  struct Regex;
  explicit Pretokenizer(std::unique_ptr<Regex> regex);
  absl::Status SplitUtf8(std::string_view text, std::vector<std::string_view>* pieces) const;

  std::unique_ptr<Regex> regex_;
};

}  // namespace engine::data
