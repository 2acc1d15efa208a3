// Contractions of English, which the words of most byte-level tokenizers end with or are: 's 't 're 've 'm 'll 'd.
#pragma once

#include <cstddef>

namespace engine::tokenizer {
namespace {  // of each file its own (block_scanner_words.h says why)

// Bytes of the contraction that begins at `at`, where a quote stands, of `count` bytes that are there; in any case of ASCII where
// `folds`; 0: there is none.
inline std::size_t ContractionBytes(const char* at, std::size_t count, bool folds) {
  if (count < 2) return 0;
  const auto letter = [&](int i) {
    const char c = at[i];
    return folds && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  switch (letter(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return count > 2 && letter(2) == 'e' ? 3 : 0;
    case 'l':
      return count > 2 && letter(2) == 'l' ? 3 : 0;
    default:
      return 0;
  }
}

}  // namespace
}  // namespace engine::tokenizer
