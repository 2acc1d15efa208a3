// How GPT-2's files show bytes: each as one printable character.
#pragma once

#include <string>
#include <string_view>

namespace engine::tokenizer {

// Appends the character that shows `byte`: itself where it is printable Latin-1, else U+0100 and on in byte order.
void AppendByteCharacter(unsigned char byte, std::string* out);

// The bytes that a token string shows, in *bytes, and true; false where a character of it shows none.
bool BytesShownBy(std::string_view token, std::string* bytes);

}  // namespace engine::tokenizer
