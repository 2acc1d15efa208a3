#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "engine/view/document.h"
#include "engine/view/words.h"

namespace engine::view {
namespace {

// Of the text's stretches of backticks, the length of the longest.
std::size_t LongestTicks(std::string_view text) {
  std::size_t longest = 0, length = 0;
  for (const char c : text) {
    length = c == '`' ? length + 1 : 0;
    longest = std::max(longest, length);
  }
  return longest;
}

// Plain text that is shown as it is. Line ends are spaces, as a line begins a table's row or a list's item.
std::string EscapeMarkdown(std::string_view text) {
  constexpr std::string_view kMarkup = "\\`*_[]<>|~&$#";
  std::string escaped;
  for (const char c : text) {
    if (kMarkup.find(c) != std::string_view::npos) escaped += '\\';
    escaped += c == '\n' || c == '\r' ? ' ' : c;
  }
  return escaped;
}

// Code in a line, between more backticks than it has; tables want "|" escaped there as well.
std::string MarkdownCode(std::string_view text) {
  const std::string ticks(LongestTicks(text) + 1, '`');
  std::string code;
  for (const char c : text) {
    if (c == '|') code += '\\';
    code += c == '\n' || c == '\r' ? ' ' : c;
  }
  const bool touches = text.starts_with('`') || text.ends_with('`');
  const char* space = touches || (text.starts_with(' ') && text.ends_with(' ')) ? " " : "";
  return ticks + space + code + space + ticks;
}

// Each block as Markdown, with an empty line behind it.
struct MarkdownWriter {
  std::string operator()(const Title& title) const {
    return fmt::format("{} {}\n\n", std::string(static_cast<std::size_t>(title.level), '#'),
                       EscapeMarkdown(title.text));
  }

  std::string operator()(const Text& text) const { return EscapeMarkdown(text.text) + "\n\n"; }

  std::string operator()(const Table& table) const {
    std::string text = "|";
    for (const std::string& head : table.head) text += fmt::format(" {} |", EscapeMarkdown(head));
    text += "\n|---|";
    for (std::size_t i = 1; i < table.head.size(); ++i) text += table.words ? "---|" : "---:|";
    text += "\n";
    for (const std::vector<TableCell>& row : table.rows) {
      text += "|";
      for (const TableCell& cell : row) text += fmt::format(" {} |", TextOf(cell));
      text += "\n";
    }
    return text + "\n";
  }

  std::string operator()(const List& list) const {
    std::string text;
    for (const std::string& item : list.items) text += fmt::format("- {}\n", EscapeMarkdown(item));
    return text + "\n";
  }

  std::string operator()(const Listing& listing) const {
    constexpr std::size_t kLeastFence = 3;
    const std::string fence(std::max(kLeastFence, LongestTicks(listing.text) + 1), '`');
    const char* end = listing.text.ends_with('\n') ? "" : "\n";
    return fmt::format("<details><summary>{}</summary>\n\n{}\n{}{}{}\n\n</details>\n\n",
                       EscapeMarkdown(listing.title), fence, listing.text, end, fence);
  }

  std::string operator()(const Picture& /*picture*/) const { return ""; }

 private:
  static std::string TextOf(const TableCell& cell) {
    if (cell.text.empty()) return kUnknownText;
    return cell.is_code ? MarkdownCode(cell.text) : EscapeMarkdown(cell.text);
  }
};

bool IsOfPicture(const Block& block) {
  const Text* text = std::get_if<Text>(&block);
  return std::holds_alternative<Picture>(block) || (text != nullptr && text->kind == Text::Kind::kOfPicture);
}

}  // namespace

std::string MarkdownOf(const Document& document) {
  std::string markdown;
  std::vector<Title> above;  // titles that nothing has come after yet
  for (const Block& block : document) {
    if (IsOfPicture(block)) continue;
    if (const Title* title = std::get_if<Title>(&block)) {
      std::erase_if(above, [&](const Title& other) { return other.level >= title->level; });
      above.push_back(*title);
      continue;
    }
    for (const Title& title : above) markdown += MarkdownWriter()(title);
    above.clear();
    markdown += std::visit(MarkdownWriter(), block);
  }
  while (markdown.ends_with("\n\n")) markdown.pop_back();
  return markdown;
}

}  // namespace engine::view
