// Text of others inside our messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace engine {

// `text` with its control characters, and the bytes that are no UTF-8, escaped ("\\x1b"), cut after about `max_bytes` with "…".
std::string Shown(std::string_view text, std::size_t max_bytes = 80);
// The same for a path, of which more is shown.
inline std::string ShownPath(std::string_view path) { return Shown(path, 1000); }

// `text` as code in a cell of a Markdown table: its bars are escaped, its backquotes become quotes.
std::string MarkdownCode(std::string_view text);

// Line and column of the byte at `at`, both from 1; columns count bytes.
std::pair<std::int64_t, std::size_t> LineAndColumn(std::string_view text, std::size_t at);

}  // namespace engine
