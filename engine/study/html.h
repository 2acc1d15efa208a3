// Pieces of pages that need nothing else: no network, no script, no other file. Light and dark, for phones and desktops.
#pragma once

#include <string>
#include <vector>

namespace engine::study {

// From the doctype to the headline; plain text. PageEnd closes what it opens.
std::string PageBegin(const std::string& title);
inline constexpr const char* kPageEnd = "</main>\n</body>\n</html>\n";

// Texts of cells are HTML.
std::string Cell(const std::string& text);
std::string Head(const std::string& text, const char* scope = "col");

// `rows` are whole; a table wider than the page scrolls by itself. `words`: its cells are words, not numbers.
std::string Table(const std::string& label, const std::vector<std::string>& head, const std::string& rows,
                  bool words = false);

// A list of what the colours of plots stand for; names are plain text, the n-th has colour n.
std::string ColourKey(const std::string& label, const std::vector<std::string>& names);

}  // namespace engine::study
