#include "engine/evaluate/white_space.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace engine::evaluate {
namespace {

// What str.isspace() says of characters beyond ASCII, in UTF-8: U+0085, U+00A0, U+1680, U+2000 to U+200A, U+2028, U+2029,
// U+202F, U+205F, U+3000.
constexpr std::array<std::string_view, 19> kWideSpaces = {
    "\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80", "\xE2\x80\x80", "\xE2\x80\x81",
    "\xE2\x80\x82", "\xE2\x80\x83", "\xE2\x80\x84", "\xE2\x80\x85", "\xE2\x80\x86",
    "\xE2\x80\x87", "\xE2\x80\x88", "\xE2\x80\x89", "\xE2\x80\x8A", "\xE2\x80\xA8",
    "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"};

// \t \n \v \f \r, the separators U+001C to U+001F, and the blank.
bool IsAsciiSpace(char c) { return (c >= '\t' && c <= '\r') || (c >= '\x1C' && c <= ' '); }

// Bytes of the white space that the text begins with; 0: it begins with none.
std::size_t SpaceAtBegin(std::string_view text) {
  if (text.empty()) return 0;
  if (IsAsciiSpace(text[0])) return 1;
  for (const std::string_view space : kWideSpaces) {
    if (text.starts_with(space)) return space.size();
  }
  return 0;
}

std::size_t SpaceAtEnd(std::string_view text) {
  if (text.empty()) return 0;
  if (IsAsciiSpace(text.back())) return 1;
  for (const std::string_view space : kWideSpaces) {
    if (text.ends_with(space)) return space.size();
  }
  return 0;
}

}  // namespace

std::string_view StripRight(std::string_view text) {
  while (const std::size_t space = SpaceAtEnd(text)) text.remove_suffix(space);
  return text;
}

std::string_view Strip(std::string_view text) {
  text = StripRight(text);
  while (const std::size_t space = SpaceAtBegin(text)) text.remove_prefix(space);
  return text;
}

std::int64_t CountWords(std::string_view text) {
  std::int64_t words = 1;
  bool in_space = false;
  while (!text.empty()) {
    const std::size_t space = SpaceAtBegin(text);
    if (space > 0 && !in_space) ++words;
    in_space = space > 0;
    text.remove_prefix(std::max<std::size_t>(space, 1));
  }
  return words;
}

std::int64_t CountCharacters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; });
}

std::size_t LastWord(std::string_view text) {
  std::string_view left = StripRight(text);
  if (left.empty()) return std::string_view::npos;
  while (!left.empty() && SpaceAtEnd(left) == 0) left.remove_suffix(1);
  return left.size();
}

}  // namespace engine::evaluate
