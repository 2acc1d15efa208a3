#include "engine/data/tokenizer/byte_characters.h"

#include <array>

#include "engine/base/utf8.h"

namespace engine::tokenizer {
namespace {

constexpr char32_t kMostShown = 0x144;  // bytes without a printable character of their own begin at U+0100

struct ByteCharacterTable {
  std::array<char32_t, 256> shown = {};
  std::array<std::int16_t, kMostShown> byte_of;

  constexpr ByteCharacterTable() : byte_of() {
    byte_of.fill(-1);
    char32_t next = 0x100;
    for (char32_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
      shown[byte] = printable ? byte : next++;
      byte_of[shown[byte]] = static_cast<std::int16_t>(byte);
    }
  }
};
constexpr ByteCharacterTable kByteCharacters;

}  // namespace

void AppendByteCharacter(unsigned char byte, std::string* out) {
  AppendUtf8(kByteCharacters.shown[byte], out);
}

bool BytesShownBy(std::string_view token, std::string* bytes) {
  bytes->clear();
  while (!token.empty()) {
    char32_t c = 0;
    const std::size_t length = DecodeUtf8(token, &c);
    if (length == 0 || c >= kMostShown || kByteCharacters.byte_of[c] < 0) return false;
    *bytes += static_cast<char>(kByteCharacters.byte_of[c]);
    token.remove_prefix(length);
  }
  return true;
}

}  // namespace engine::tokenizer
