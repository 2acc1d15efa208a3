// Text for a terminal: lines of styled pieces, as wide as the terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace engine::view {

enum class Style { kPlain, kBold, kDim, kGood, kWarning, kBad, kCurve };

struct Span {
  std::string text;  // Printable, or our own
  Style style = Style::kPlain;
};
using Line = std::vector<Span>;

// Text of a file, safe on a terminal: control characters and bytes that are no UTF-8 are escaped (base/shown.h), characters that
// turn the direction of writing are replaced.
std::string Printable(std::string_view text, std::size_t most_bytes = 400);

// Columns of a terminal that the text takes: wide characters of East Asia take two, combining ones none.
std::size_t ColumnsOf(std::string_view text);

// The text in so many columns: cut behind "…", or filled with spaces on its right.
std::string Fitted(std::string_view text, std::size_t columns);

struct RenderOptions {
  std::size_t columns = 80;
  bool color = false;
  bool ascii = false;  // characters beyond ASCII are replaced by their likes, or by "?"
};

// Each line cut to the columns, without a line's end.
std::vector<std::string> Render(const std::vector<Line>& lines, const RenderOptions& options);

}  // namespace engine::view
