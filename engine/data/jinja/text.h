// Python's strings on UTF-8: positions are code points.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace engine::jinja {

std::int64_t CodePoints(std::string_view text);

// Where the code point of that index begins, in bytes; the end of the text for indices beyond it.
std::size_t ByteOfCodePoint(std::string_view text, std::int64_t index);

// The code points of a text, each as the bytes that encode it.
std::vector<std::string_view> Characters(std::string_view text);

// Whether str.isspace() holds for the code point.
bool IsSpace(char32_t code_point);

// What str.strip() leaves: without white space at the ends asked for, or without any of `characters` where that is not null.
std::string_view Strip(std::string_view text, const std::string* characters, bool left, bool right);

// str.split(): at runs of white space, or at each `separator`, which is not empty; at most `most` times (negative: any number),
// from the end with `from_right`.
std::vector<std::string_view> SplitAtSpace(std::string_view text, std::int64_t most, bool from_right);
std::vector<std::string_view> SplitAt(std::string_view text, std::string_view separator, std::int64_t most,
                                      bool from_right);
// str.splitlines(), without the ends of the lines.
std::vector<std::string_view> SplitLines(std::string_view text);

// str.replace(); at most `most` times (negative: any number). False: the result has more than `most_bytes`.
bool Replace(std::string_view text, std::string_view from, std::string_view to, std::int64_t most,
             std::size_t most_bytes, std::string* out);

// Letters' case, of ASCII alone; IsAscii tells where that is all there is.
bool IsAscii(std::string_view text);
std::string Upper(std::string_view text);
std::string Lower(std::string_view text);
std::string Title(std::string_view text);  // str.title(): a capital behind each character that is no letter
std::string Capitalize(std::string_view text);  // str.capitalize()

// repr() of a string, in the quotes that Python chooses.
void AppendTextRepr(std::string_view text, std::string* out);

}  // namespace engine::jinja
