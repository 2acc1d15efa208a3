#include "engine/recipe/scan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/base/utf8.h"
#include "engine/recipe/document.h"

namespace engine::recipe {
namespace {

using Byte = unsigned char;

std::optional<Diagnostic> FindInvalidUtf8(const Source& source) {
  const std::string_view text = source.text();
  for (std::size_t at = 0; at < text.size();) {
    char32_t code_point = 0;
    const std::size_t length = DecodeUtf8(text.substr(at), &code_point);
    if (length == 0) {
      return source.Error(source.MarkOfOffset(at),
                          fmt::format("invalid UTF-8: byte 0x{:02x}", static_cast<Byte>(text[at])),
                          "save the file as UTF-8");
    }
    if (text[at] == '\0') return source.Error(source.MarkOfOffset(at), "a recipe cannot have a NUL byte");
    at += length;
  }
  return std::nullopt;
}

bool IsAscii(char c) { return static_cast<Byte>(c) < 0x80; }

// toml++ 3.3 has undefined behaviour where it looks for white space and finds another non-ASCII character.
// TOML 1.0 allows those only in strings and comments; inside strings it looks after a backslash that ends the
// line.

// Elsewhere a quote breaks a value: toml++ then reads on to the value's end, and what follows is in no
// string.
bool BeginsString(std::string_view text, std::size_t at, std::size_t begin) {
  constexpr std::string_view kBefore = " \t\r\n=[{,.";
  return (text[at] == '"' || text[at] == '\'') &&
         (at == begin || kBefore.find(text[at - 1]) != std::string_view::npos);
}

struct SkippedString {
  std::size_t end = 0;                // just after the string
  std::optional<std::size_t> unsafe;  // such a character
};

// The string that begins at `at`, any of TOML's four kinds.
SkippedString SkipString(std::string_view text, std::size_t at) {
  const char quote = text[at];
  const std::string_view triple = quote == '"' ? "\"\"\"" : "'''";
  const bool multi_line = text.substr(at, 3) == triple;
  const std::string_view end = multi_line ? triple : triple.substr(0, 1);
  for (at += end.size(); at < text.size(); ++at) {
    if (quote == '"' && text[at] == '\\') {
      ++at;
      const std::size_t next = std::min(text.find_first_not_of(" \t\r\n", at), text.size());
      if (next < text.size() && !IsAscii(text[next])) return {at, next};
    } else if (text.substr(at, end.size()) == end) {
      return {at + end.size(), std::nullopt};
    } else if (!multi_line && text[at] == '\n') {
      return {at, std::nullopt};
    }
  }
  return {text.size(), std::nullopt};
}

// Counts what would cost the parser stack or memory, over the characters outside of strings and comments.
class Counter {
 public:
  // What is exceeded with this character; empty if nothing is.
  std::string Add(char c) {
    if (c == '[' || c == '{') ++depth_;
    if ((c == ']' || c == '}') && depth_ > 0) --depth_;
    if (c == '.') {
      ++dots_;
    } else if (IsOneOf(c, "[]{}=,\n")) {
      dots_ = 0;
    }
    if (IsOneOf(c, "[{=,.")) ++tokens_;
    if (depth_ > kMaxNesting || dots_ > kMaxNesting) {
      return fmt::format("nested more than {} deep; a recipe nests 3 deep", kMaxNesting);
    }
    if (tokens_ > kMaxTokens) return fmt::format("more than {} values; a recipe has about 100", kMaxTokens);
    return "";
  }

 private:
  static bool IsOneOf(char c, std::string_view set) { return set.find(c) != std::string_view::npos; }

  int depth_ = 0;   // of brackets
  int dots_ = 0;    // of one dotted key
  int tokens_ = 0;  // about the number of values and tables
};

}  // namespace

std::optional<Diagnostic> FindUnsafeText(const Source& source) {
  if (std::optional<Diagnostic> invalid = FindInvalidUtf8(source)) return invalid;
  const std::string_view text = source.text();
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  Counter counter;
  const std::size_t begin = text.substr(0, 3) == kByteOrderMark ? 3 : 0;
  for (std::size_t at = begin; at < text.size(); ++at) {
    const char c = text[at];
    if (BeginsString(text, at, begin)) {
      const SkippedString skipped = SkipString(text, at);
      if (skipped.unsafe.has_value()) {
        return source.Error(source.MarkOfOffset(*skipped.unsafe),
                            "a character beyond ASCII cannot follow a backslash");
      }
      at = skipped.end - 1;
      continue;
    }
    if (!IsAscii(c)) {
      return source.Error(source.MarkOfOffset(at),
                          "characters beyond ASCII may stand only in strings and comments");
    }
    if (c == '#') at = std::min(text.find('\n', at), text.size() - 1);
    const std::string exceeded = counter.Add(text[at]);
    if (!exceeded.empty()) return source.Error(source.MarkOfOffset(at), exceeded);
  }
  return std::nullopt;
}

}  // namespace engine::recipe
