// White space and characters of UTF-8 texts as Python's strings have them: the tasks' rules are those of programs in Python
// (lm-evaluation-harness, Megatron-LM), and so are the numbers of words that they divide by.
#pragma once

#include <cstdint>
#include <string_view>

namespace engine::evaluate {

// The text without the white space at its end, as str.rstrip; and at both ends, as str.strip.
std::string_view StripRight(std::string_view text);
std::string_view Strip(std::string_view text);

// len(re.split(r"\s+", text)): one more than there are runs of white space, so that white space at an end counts as another
// word, and the empty text as one.
std::int64_t CountWords(std::string_view text);

// len(text): of bytes that are no UTF-8, each that begins no character belongs to the one before.
std::int64_t CountCharacters(std::string_view text);

// Where the last word of the text begins, of words that are apart by any white space; npos where there is none.
std::size_t LastWord(std::string_view text);

}  // namespace engine::evaluate
