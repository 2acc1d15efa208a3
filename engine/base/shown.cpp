#include "engine/base/shown.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/utf8.h"

namespace engine {

namespace {

// A control character, of ASCII or of those behind it (C1).
bool IsControl(char32_t c) { return c < 0x20 || (c >= 0x7f && c < 0xa0); }

std::string Escaped(std::string_view bytes) {
  if (bytes == "\n") return "\\n";
  std::string escaped;
  for (const char c : bytes) escaped += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return escaped;
}

}  // namespace

std::string Shown(std::string_view text, std::size_t max_bytes) {
  std::string shown;
  while (!text.empty()) {
    if (shown.size() >= max_bytes) return shown + "…";
    char32_t c = 0;
    const std::size_t length = DecodeUtf8(text, &c);  // 0: the byte begins no character
    const std::string_view character = text.substr(0, std::max<std::size_t>(1, length));
    shown += length == 0 || IsControl(c) ? Escaped(character) : std::string(character);
    text.remove_prefix(character.size());
  }
  return shown;
}

std::string MarkdownCode(std::string_view text) {
  std::string escaped;
  for (const char c : text) escaped += c == '|' ? std::string("\\|") : std::string(1, c == '`' ? '\'' : c);
  return "`" + escaped + "`";
}

std::pair<std::int64_t, std::size_t> LineAndColumn(std::string_view text, std::size_t at) {
  const std::string_view before = text.substr(0, at);
  const std::size_t line_begins = before.rfind('\n') + 1;  // npos + 1 is 0
  return {1 + std::count(before.begin(), before.end(), '\n'), before.size() - line_begins + 1};
}

}  // namespace engine
