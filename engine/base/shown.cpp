#include "engine/base/shown.h"

#include <fmt/format.h>

#include <algorithm>

namespace engine {

std::string Shown(std::string_view text, std::size_t max_bytes) {
  constexpr std::size_t kMostContinuation = 3;  // bytes of a character of UTF-8 after its first
  std::string shown;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool continues = (byte & 0xC0) == 0x80;  // a character of UTF-8, whose first byte is shown
    if (shown.size() >= max_bytes + (continues ? kMostContinuation : 0)) return shown + "…";
    if (byte >= 0x20 && byte != 0x7f) {
      shown += c;
    } else {
      shown += c == '\n' ? "\\n" : fmt::format("\\x{:02x}", byte);
    }
  }
  return shown;
}

std::pair<std::int64_t, std::size_t> LineAndColumn(std::string_view text, std::size_t at) {
  const std::string_view before = text.substr(0, at);
  const std::size_t line_begins = before.rfind('\n') + 1;  // npos + 1 is 0
  return {1 + std::count(before.begin(), before.end(), '\n'), before.size() - line_begins + 1};
}

}  // namespace engine
