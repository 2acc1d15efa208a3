// Regular expressions of tokenizer files for which there is no scanner. They are written for Oniguruma (Ruby's
// syntax); the part of it that can be said in PCRE2's is compiled with that library, with the classes of characters of
// unicode.h in place of the library's own. Anything else is refused by name.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace engine::tokenizer {

// PCRE2's syntax for an expression of Oniguruma's. InvalidArgument or Unimplemented: what of it is not understood.
absl::StatusOr<std::string> TranslateRegex(std::string_view pattern);

class Regex {
 public:
  static absl::StatusOr<Regex> Compile(const std::string& pattern);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  struct Match {
    std::uint32_t begin;
    std::uint32_t end;  // begin: an empty match, which is a place between two characters
  };
  // Appends the matches in `text`, which is UTF-8, from left to right, none over another. ResourceExhausted where the
  // expression goes back and forth more often than a bound, so that no text holds it up for long.
  absl::Status FindAll(std::string_view text, std::vector<Match>* matches) const;

 private:
  struct Code;
  explicit Regex(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

}  // namespace engine::tokenizer
