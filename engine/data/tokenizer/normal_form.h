// Unicode's normal forms (UAX 15), of Unicode 9.0, as the reference tokenizers have them.
#pragma once

#include <string>
#include <string_view>

namespace engine::tokenizer {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// Appends the normal form of `text`, which is UTF-8. Linear in the bytes but for sorting each run of combining marks.
void AppendNormalForm(std::string_view text, NormalForm form, std::string* out);

// Whether `text`, which is UTF-8, surely is its own NFC: it has no character that composes, decomposes or is reordered.
bool IsPlainlyNfc(std::string_view text);

}  // namespace engine::tokenizer
