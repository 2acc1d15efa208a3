// A report before it is a page or Markdown. All texts are plain; the pictures alone are HTML.
#pragma once

#include <string>
#include <variant>
#include <vector>

namespace engine::view {

struct Title {
  int level = 2;  // 1: the report's own
  std::string text;
};

// A paragraph.
struct Text {
  enum class Kind { kPlain, kNote, kOfPicture };  // the last explains a picture, and goes where that goes

  std::string text;
  Kind kind = Kind::kPlain;
};

struct TableCell {
  std::string text;  // empty: not known
  bool is_code = false;
  // By which programs find it in the page: data-run and data-number; empty: not at all.
  std::string run = {}, number = {};
};

struct Table {
  std::string label;  // for readers who cannot see it
  std::vector<std::string> head;
  std::vector<std::vector<TableCell>> rows = {};  // the first cell of a row is its head
  bool words = false;                             // its cells are words, not numbers
  bool wraps = false;                             // long cells may have several lines
};

struct List {
  std::vector<std::string> items;
};

// A long text that is shown where the reader asks for it.
struct Listing {
  std::string title, label, text;
};

struct Picture {
  std::string html;
};

using Block = std::variant<Title, Text, Table, List, Listing, Picture>;
using Document = std::vector<Block>;

void Append(Document from, Document* to);

// One file that needs no other, no network and no script. The first block is the title of level 1.
std::string HtmlOf(const Document& document);

// GitHub's dialect, without the pictures, and without the titles below which nothing is left.
std::string MarkdownOf(const Document& document);

}  // namespace engine::view
