#include "engine/data/tokenizer/graphemes.h"

#include "engine/base/utf8.h"
#include "engine/data/tokenizer/unicode.h"

namespace engine::tokenizer {
namespace {

bool IsControl(Break kind) { return kind == Break::kCr || kind == Break::kLf || kind == Break::kControl; }

bool HangulJoins(Break left, Break right) {
  switch (left) {
    case Break::kL:
      return right == Break::kL || right == Break::kV || right == Break::kLv || right == Break::kLvt;
    case Break::kLv:
    case Break::kV:
      return right == Break::kV || right == Break::kT;
    case Break::kLvt:
    case Break::kT:
      return right == Break::kT;
    default:
      return false;
  }
}

}  // namespace

std::size_t GraphemeBytes(std::string_view text) {
  char32_t c = 0;
  std::size_t at = DecodeUtf8(text, &c);
  BreakProperties left = BreakOf(c);
  int regionals = left.kind == Break::kRegional ? 1 : 0;
  bool is_picture = left.is_picture;      // a picture, then only extending characters
  bool is_consonant = left.is_consonant;  // a consonant, then only linkers and extending characters
  bool has_linker = false;
  while (at < text.size()) {
    const std::size_t length = DecodeUtf8(text.substr(at), &c);
    const BreakProperties right = BreakOf(c);
    const bool extends = right.kind == Break::kExtend || right.kind == Break::kZwj;
    bool joins = false;
    if (left.kind == Break::kCr || IsControl(left.kind) || IsControl(right.kind)) {
      joins = left.kind == Break::kCr && right.kind == Break::kLf;  // GB3 to GB5
    } else if (HangulJoins(left.kind, right.kind) || extends || right.kind == Break::kSpacingMark ||
               left.kind == Break::kPrepend ||                                  // GB6 to GB9b
               (is_consonant && has_linker && right.is_consonant) ||            // GB9c
               (left.kind == Break::kZwj && is_picture && right.is_picture)) {  // GB11
      joins = true;
    } else if (left.kind == Break::kRegional && right.kind == Break::kRegional) {
      joins = regionals % 2 == 1;  // GB12, GB13
    }
    if (!joins) break;
    is_picture = right.is_picture || (is_picture && extends);
    has_linker = right.is_consonant ? false : has_linker || right.is_linker;
    is_consonant = right.is_consonant || (is_consonant && (extends || right.is_linker));
    regionals = right.kind == Break::kRegional ? regionals + 1 : 0;
    left = right;
    at += length;
  }
  return at;
}

}  // namespace engine::tokenizer
