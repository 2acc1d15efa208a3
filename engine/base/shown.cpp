#include "engine/base/shown.h"

#include <fmt/format.h>

namespace engine {

std::string Shown(std::string_view text, std::size_t max_bytes) {
  std::string shown;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (shown.size() >= max_bytes && (byte & 0xC0) != 0x80) return shown + "…";
    if (byte >= 0x20 && byte != 0x7f) {
      shown += c;
    } else {
      shown += c == '\n' ? "\\n" : fmt::format("\\x{:02x}", byte);
    }
  }
  return shown;
}

}  // namespace engine
