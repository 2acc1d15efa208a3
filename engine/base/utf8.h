// The little of UTF-8 that byte-level tokenizers and messages need.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace engine {

// Decodes the code point that `text` (not empty) starts with into *code_point and returns its length in
// bytes; 0 if it does not start with a well-formed one (overlong forms, surrogates and values above U+10FFFF
// are not).
std::size_t DecodeUtf8(std::string_view text, char32_t* code_point);

// Length in bytes of the longest prefix of `text` that is well-formed UTF-8.
std::size_t ValidUtf8Prefix(std::string_view text);

void AppendUtf8(char32_t code_point, std::string* text);

}  // namespace engine
