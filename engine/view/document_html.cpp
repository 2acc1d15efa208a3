#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "engine/study/html.h"
#include "engine/study/plot.h"
#include "engine/view/document.h"
#include "engine/view/words.h"

namespace engine::view {
namespace {

using study::EscapeHtml;

// Each block as HTML.
struct HtmlWriter {
  std::string operator()(const Title& title) const {
    return title.level == 1 ? study::PageBegin(title.text)
                            : fmt::format("<h{0}>{1}</h{0}>\n", title.level, EscapeHtml(title.text));
  }

  std::string operator()(const Text& text) const {
    const char* note = text.kind == Text::Kind::kPlain ? "" : " class=\"note\"";
    return fmt::format("<p{}>{}</p>\n", note, EscapeHtml(text.text));
  }

  std::string operator()(const Table& table) const {
    std::string rows;
    for (const std::vector<TableCell>& row : table.rows) {
      rows += "<tr>" + study::Head(TextOf(row[0]), "row");
      for (std::size_t i = 1; i < row.size(); ++i) rows += CellOf(row[i]);
      rows += "</tr>\n";
    }
    std::vector<std::string> head;
    for (const std::string& text : table.head) head.push_back(EscapeHtml(text));
    const std::string text = study::Table(table.label, head, rows, table.words);
    return table.wraps ? "<div class=\"wrap\">" + text + "</div>\n" : text;
  }

  std::string operator()(const List& list) const {
    std::string items;
    for (const std::string& item : list.items) items += fmt::format("<li>{}</li>\n", EscapeHtml(item));
    return "<ul>\n" + items + "</ul>\n";
  }

  std::string operator()(const Listing& listing) const {
    return fmt::format(
        "<details><summary>{}</summary>\n<div class=\"scroll\" role=\"region\" tabindex=\"0\" "
        "aria-label=\"{}\"><pre>{}</pre></div></details>\n",
        EscapeHtml(listing.title), EscapeHtml(listing.label), EscapeHtml(listing.text));
  }

  std::string operator()(const Picture& picture) const { return picture.html; }

 private:
  static std::string TextOf(const TableCell& cell) {
    if (cell.text.empty()) return kUnknownText;
    return cell.is_code ? "<code>" + EscapeHtml(cell.text) + "</code>" : EscapeHtml(cell.text);
  }

  static std::string CellOf(const TableCell& cell) {
    if (cell.number.empty()) return study::Cell(TextOf(cell));
    return fmt::format("<td data-run=\"{}\" data-number=\"{}\">{}</td>", EscapeHtml(cell.run), cell.number,
                       TextOf(cell));
  }
};

}  // namespace

void Append(Document from, Document* to) {
  to->insert(to->end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

std::string HtmlOf(const Document& document) {
  std::string page;
  for (const Block& block : document) page += std::visit(HtmlWriter(), block);
  return page + study::kPageEnd;
}

}  // namespace engine::view
