#include "engine/view/lines.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "engine/base/shown.h"
#include "engine/base/utf8.h"

namespace engine::view {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

struct Character {
  char32_t code = kReplacement;
  std::size_t bytes = 1;
};

// The first character of a text that is not empty; kReplacement of one byte where it is no UTF-8.
Character FirstOf(std::string_view text) {
  char32_t code = 0;
  const std::size_t length = DecodeUtf8(text, &code);
  return length == 0 ? Character{} : Character{code, length};
}

using CodeRange = std::pair<char32_t, char32_t>;

template <std::size_t N>
bool IsIn(const std::array<CodeRange, N>& ranges, char32_t code) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [code](const CodeRange& range) { return code >= range.first && code <= range.second; });
}

// Marks that turn the direction of writing; separators of lines; byte order mark.
constexpr std::array<CodeRange, 5> kUnsafe = {
    {{0x61C, 0x61C}, {0x200B, 0x200F}, {0x2028, 0x202E}, {0x2066, 0x2069}, {0xFEFF, 0xFEFF}}};
// The blocks of combining marks, and of characters that East Asian Width (Unicode's annex 11) has as wide, coarsely.
constexpr std::array<CodeRange, 5> kCombining = {
    {{0x300, 0x36F}, {0x1AB0, 0x1AFF}, {0x20D0, 0x20FF}, {0xFE00, 0xFE0F}, {0xFE20, 0xFE2F}}};
constexpr std::array<CodeRange, 9> kWide = {{{0x1100, 0x115F},
                                             {0x2E80, 0x303E},
                                             {0x3041, 0xA4CF},
                                             {0xAC00, 0xD7A3},
                                             {0xF900, 0xFAFF},
                                             {0xFE30, 0xFE6F},
                                             {0xFF00, 0xFF60},
                                             {0x1F300, 0x1FAFF},
                                             {0x20000, 0x3FFFD}}};

std::size_t ColumnsOfCode(char32_t code) { return IsIn(kCombining, code) ? 0 : IsIn(kWide, code) ? 2 : 1; }

// What stands for a character of ours where there is only ASCII.
const char* AsciiOf(char32_t code) {
  switch (code) {
    case U'·':
    case U'–':
      return "-";
    case U'×':
      return "x";
    case U'…':
      return "~";
    case U'│':
      return "|";
    default:
      return "?";
  }
}

std::string InAscii(std::string_view text) {
  std::string ascii;
  while (!text.empty()) {
    const Character first = FirstOf(text);
    if (first.code < 0x80) {
      ascii += static_cast<char>(first.code);
    } else {
      ascii += AsciiOf(first.code);
    }
    text.remove_prefix(first.bytes);
  }
  return ascii;
}

// The text's beginning that fits into so many columns.
std::string_view Beginning(std::string_view text, std::size_t columns) {
  std::size_t bytes = 0, taken = 0;
  while (bytes < text.size()) {
    const Character next = FirstOf(text.substr(bytes));
    taken += ColumnsOfCode(next.code);
    if (taken > columns) break;
    bytes += next.bytes;
  }
  return text.substr(0, bytes);
}

// Cut behind "…" where it is wider.
std::string Cut(std::string_view text, std::size_t columns) {
  if (ColumnsOf(text) <= columns) return std::string(text);
  return columns == 0 ? std::string() : std::string(Beginning(text, columns - 1)) + "…";
}

const char* CodeOf(Style style) {
  constexpr std::array kCodes = {"", "\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[33m", "\x1b[1;31m", "\x1b[36m"};
  return kCodes[static_cast<std::size_t>(style)];
}

std::string RenderLine(const Line& line, const RenderOptions& options) {
  std::string text;
  std::size_t left = options.columns;
  for (const Span& span : line) {
    std::string cut = Cut(options.ascii ? InAscii(span.text) : span.text, left);
    if (options.ascii) cut = InAscii(cut);  // the mark of what is cut off
    left -= ColumnsOf(cut);
    const bool styled = options.color && span.style != Style::kPlain && !cut.empty();
    text += styled ? CodeOf(span.style) + cut + "\x1b[0m" : cut;
  }
  return options.color ? text : text.substr(0, text.find_last_not_of(' ') + 1);
}

}  // namespace

std::string Printable(std::string_view text, std::size_t most_bytes) {
  const std::string shown = Shown(text, most_bytes);
  std::string printable;
  for (std::string_view rest = shown; !rest.empty();) {
    const Character first = FirstOf(rest);
    const bool replaced = first.code == kReplacement || IsIn(kUnsafe, first.code);
    printable += replaced ? std::string_view("\uFFFD") : rest.substr(0, first.bytes);
    rest.remove_prefix(first.bytes);
  }
  return printable;
}

std::size_t ColumnsOf(std::string_view text) {
  std::size_t columns = 0;
  for (; !text.empty(); text.remove_prefix(FirstOf(text).bytes)) columns += ColumnsOfCode(FirstOf(text).code);
  return columns;
}

std::string Fitted(std::string_view text, std::size_t columns) {
  std::string fitted = Cut(text, columns);
  fitted.append(columns - ColumnsOf(fitted), ' ');
  return fitted;
}

std::vector<std::string> Render(const std::vector<Line>& lines, const RenderOptions& options) {
  std::vector<std::string> rendered;
  rendered.reserve(lines.size());
  for (const Line& line : lines) rendered.push_back(RenderLine(line, options));
  return rendered;
}

}  // namespace engine::view
