// Borders of grapheme clusters (UAX 29, extended), for tables that apply to what a reader sees as one character.
#pragma once

#include <cstddef>
#include <string_view>

namespace engine::tokenizer {

// Bytes of the cluster that `text` begins with. `text` is UTF-8 and not empty.
std::size_t GraphemeBytes(std::string_view text);

}  // namespace engine::tokenizer
