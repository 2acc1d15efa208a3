#include "engine/base/utf8.h"

#include <doctest/doctest.h>

namespace engine::tokenizer {

TEST_CASE("every code point is written and read back, surrogates are not read") {
  for (char32_t code_point = 0; code_point <= 0x10FFFF; ++code_point) {
    std::string text;
    AppendUtf8(code_point, &text);
    char32_t read = 0;
    const bool is_surrogate = code_point >= 0xD800 && code_point <= 0xDFFF;
    const std::size_t length = DecodeUtf8(text, &read);
    if (is_surrogate ? length != 0 : length != text.size() || read != code_point) FAIL(code_point);
  }
}

TEST_CASE("ill-formed sequences are recognised") {
  for (std::string_view bad :
       {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xC2", "\xC2\x41", "\xE0\x9F\xBF", "\xE4\xB8",
        "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF"}) {
    const std::string text = "ab" + std::string(bad) + "c";
    CHECK(ValidUtf8Prefix(text) == 2);
    CHECK(ValidUtf8Prefix("ab" + std::string(bad)) == 2);
  }
  CHECK(ValidUtf8Prefix("") == 0);
  CHECK(ValidUtf8Prefix("a\xC3\xA9") == 3);
}

}  // namespace engine::tokenizer
