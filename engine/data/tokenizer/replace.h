// A string or a regular expression that is replaced wherever it stands.
#pragma once

#include <absl/status/statusor.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/tokenizer/description.h"
#include "engine/data/tokenizer/regex.h"

namespace engine::tokenizer {

// Finds a Pattern.
class Finder {
 public:
  static absl::StatusOr<Finder> Make(const Pattern& pattern);
  // Appends the matches in `text`, which is UTF-8, from left to right, none over another.
  absl::Status FindAll(std::string_view text, std::vector<Regex::Match>* matches) const;

  // Whether the pattern is one ASCII character, and which.
  bool is_character() const { return !regex_.has_value() && text_.size() == 1; }
  char character() const { return text_[0]; }

 private:
  std::string text_;
  std::optional<Regex> regex_;
};

class Replacer {
 public:
  static absl::StatusOr<Replacer> Make(const Replace& replace);
  absl::Status Append(std::string_view text, std::string* out) const;

 private:
  Replacer(Finder finder, std::string content) : finder_(std::move(finder)), content_(std::move(content)) {}
  Finder finder_;
  std::string content_;
};

}  // namespace engine::tokenizer
