#include "engine/data/jinja/text.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/utf8.h"
#include "engine/data/tokenizer/unicode.h"

namespace engine::jinja {
namespace {

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80; }

bool IsUpperAscii(char c) { return c >= 'A' && c <= 'Z'; }
bool IsLowerAscii(char c) { return c >= 'a' && c <= 'z'; }
char UpperOf(char c) { return IsLowerAscii(c) ? static_cast<char>(c - 'a' + 'A') : c; }
char LowerOf(char c) { return IsUpperAscii(c) ? static_cast<char>(c - 'A' + 'a') : c; }

// The character that the text, which is not empty, begins or ends with.
std::string_view FirstCharacter(std::string_view text) {
  std::size_t length = 1;
  while (length < text.size() && IsContinuation(text[length])) ++length;
  return text.substr(0, length);
}
std::string_view LastCharacter(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && IsContinuation(text[at])) --at;
  return text.substr(at);
}

char32_t CodePointOf(std::string_view character) {
  char32_t c = 0;
  return DecodeUtf8(character, &c) == 0 ? U'\uFFFD' : c;
}

bool IsSpaceCharacter(std::string_view character) { return IsSpace(CodePointOf(character)); }

// The text without the white space at its beginning.
std::string_view WithoutSpace(std::string_view text) { return Strip(text, nullptr, true, false); }

std::size_t WordLength(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::string_view character = FirstCharacter(text.substr(at));
    if (IsSpaceCharacter(character)) break;
    at += character.size();
  }
  return at;
}

// What Python's str.isprintable() says no to, by Unicode's categories.
bool IsPrintable(char32_t c) {
  using tokenizer::Category;
  constexpr tokenizer::Properties kHidden = tokenizer::Of(Category::kCc) | tokenizer::Of(Category::kCf) |
                                            tokenizer::Of(Category::kCs) | tokenizer::Of(Category::kCo) |
                                            tokenizer::Of(Category::kCn) | tokenizer::Of(Category::kZl) |
                                            tokenizer::Of(Category::kZp) | tokenizer::Of(Category::kZs);
  return c == U' ' || !tokenizer::Is(c, kHidden);
}

}  // namespace

std::int64_t CodePoints(std::string_view text) {
  return static_cast<std::int64_t>(text.size()) - std::count_if(text.begin(), text.end(), IsContinuation);
}

std::size_t ByteOfCodePoint(std::string_view text, std::int64_t index) {
  std::size_t at = 0;
  for (; index > 0 && at < text.size(); --index) at += FirstCharacter(text.substr(at)).size();
  return at;
}

std::vector<std::string_view> Characters(std::string_view text) {
  std::vector<std::string_view> characters;
  while (!text.empty()) {
    characters.push_back(FirstCharacter(text));
    text.remove_prefix(characters.back().size());
  }
  return characters;
}

bool IsSpace(char32_t code_point) {
  if (code_point < 0x80) {
    return code_point == ' ' || (code_point >= 0x09 && code_point <= 0x0D) ||
           (code_point >= 0x1C && code_point <= 0x1F);
  }
  return tokenizer::Is(code_point, tokenizer::kWhiteSpace);
}

std::string_view Strip(std::string_view text, const std::string* characters, bool left, bool right) {
  std::vector<std::string_view> set;
  if (characters != nullptr) set = Characters(*characters);
  const auto goes = [&](std::string_view character) {
    if (characters == nullptr) return IsSpaceCharacter(character);
    return std::find(set.begin(), set.end(), character) != set.end();
  };
  while (left && !text.empty() && goes(FirstCharacter(text))) text.remove_prefix(FirstCharacter(text).size());
  while (right && !text.empty() && goes(LastCharacter(text))) text.remove_suffix(LastCharacter(text).size());
  return text;
}

std::vector<std::string_view> SplitAtSpace(std::string_view text, std::int64_t most, bool from_right) {
  std::vector<std::string_view> parts;
  const auto has_room = [&] { return most < 0 || static_cast<std::int64_t>(parts.size()) < most; };
  if (!from_right) {
    for (text = WithoutSpace(text); !text.empty() && has_room(); text = WithoutSpace(text)) {
      parts.push_back(text.substr(0, WordLength(text)));
      text.remove_prefix(parts.back().size());
    }
    if (!text.empty()) parts.push_back(text);  // with the white space behind it, as Python has it
    return parts;
  }
  text = Strip(text, nullptr, false, true);
  while (!text.empty() && has_room()) {
    std::size_t begin = text.size();
    while (begin > 0) {
      const std::string_view character = LastCharacter(text.substr(0, begin));
      if (IsSpaceCharacter(character)) break;
      begin -= character.size();
    }
    parts.push_back(text.substr(begin));
    text = Strip(text.substr(0, begin), nullptr, false, true);
  }
  if (!text.empty()) parts.push_back(text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> SplitAt(std::string_view text, std::string_view separator, std::int64_t most,
                                      bool from_right) {
  std::vector<std::string_view> parts;
  const auto has_room = [&] { return most < 0 || static_cast<std::int64_t>(parts.size()) < most; };
  while (has_room()) {
    const std::size_t at = from_right ? text.rfind(separator) : text.find(separator);
    if (at == std::string_view::npos) break;
    parts.push_back(from_right ? text.substr(at + separator.size()) : text.substr(0, at));
    text = from_right ? text.substr(0, at) : text.substr(at + separator.size());
  }
  parts.push_back(text);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> SplitLines(std::string_view text) {
  std::vector<std::string_view> lines;
  std::size_t begin = 0;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::string_view character = FirstCharacter(text.substr(at));
    const char32_t c = CodePointOf(character);
    const bool ends =
        (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
    const std::size_t next =
        at + character.size() + (c == '\r' && text.substr(at).starts_with("\r\n") ? 1 : 0);
    if (ends) {
      lines.push_back(text.substr(begin, at - begin));
      begin = next;
    }
    at = next;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

bool Replace(std::string_view text, std::string_view from, std::string_view to, std::int64_t most,
             std::size_t most_bytes, std::string* out) {
  std::int64_t count = 0;
  const auto has_room = [&] { return most < 0 || count < most; };
  if (from.empty()) {  // before each character, and at the end
    while (!text.empty() && has_room() && out->size() <= most_bytes) {
      out->append(to).append(FirstCharacter(text));
      text.remove_prefix(FirstCharacter(text).size());
      ++count;
    }
    if (text.empty() && has_room()) *out += to;
    *out += text;
    return out->size() <= most_bytes;
  }
  while (has_room() && out->size() <= most_bytes) {
    const std::size_t at = text.find(from);
    if (at == std::string_view::npos) break;
    out->append(text.substr(0, at)).append(to);
    text.remove_prefix(at + from.size());
    ++count;
  }
  *out += text;
  return out->size() <= most_bytes;
}

bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

std::string Upper(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), UpperOf);
  return result;
}

std::string Lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), LowerOf);
  return result;
}

std::string Title(std::string_view text) {
  std::string result;
  bool in_word = false;
  for (const char c : text) {
    result += in_word ? LowerOf(c) : UpperOf(c);
    in_word = IsUpperAscii(c) || IsLowerAscii(c);
  }
  return result;
}

std::string Capitalize(std::string_view text) {
  std::string result = Lower(text);
  if (!result.empty()) result[0] = UpperOf(result[0]);
  return result;
}

void AppendTextRepr(std::string_view text, std::string* out) {
  const bool double_quotes =
      text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = double_quotes ? '"' : '\'';
  *out += quote;
  for (; !text.empty(); text.remove_prefix(FirstCharacter(text).size())) {
    const std::string_view character = FirstCharacter(text);
    const char32_t c = CodePointOf(character);
    if (c == static_cast<unsigned char>(quote) || c == '\\') {
      *out += '\\';
      *out += static_cast<char>(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      *out += c == '\n' ? "\\n" : (c == '\r' ? "\\r" : "\\t");
    } else if (IsPrintable(c)) {
      *out += character;
    } else if (c < 0x100) {
      *out += fmt::format("\\x{:02x}", static_cast<std::uint32_t>(c));
    } else {
      *out += c < 0x10000 ? fmt::format("\\u{:04x}", static_cast<std::uint32_t>(c))
                          : fmt::format("\\U{:08x}", static_cast<std::uint32_t>(c));
    }
  }
  *out += quote;
}

}  // namespace engine::jinja
