#include "engine/base/shown.h"

#include <doctest/doctest.h>

namespace engine {

TEST_CASE(
    "shown: control characters and what is no UTF-8 are escaped, and long texts are cut between characters") {
  CHECK(Shown("a\n\033[1m") == "a\\n\\x1b[1m");
  CHECK(MarkdownCode("a|b`c\\") == "`a\\|b'c\\`");
  CHECK(Shown("abcdef", 3) == "abc…");
  CHECK(Shown("abc", 3) == "abc");
  CHECK(Shown("aää", 2) == "aä…");  // the second character has two bytes
  CHECK(Shown("a\xff\xc3(\xed\xa0\x80ä") == "a\\xff\\xc3(\\xed\\xa0\\x80ä");
  CHECK(Shown("\xc2\x9b[1m\x7f") == "\\xc2\\x9b[1m\\x7f");  // a terminal may take U+009B for an escape
  CHECK(Shown(std::string(5000, '\x80')).size() < 100);     // no UTF-8
}

TEST_CASE("line and column of a byte, both from 1") {
  using Place = std::pair<std::int64_t, std::size_t>;
  CHECK((LineAndColumn("ab\ncd", 0) == Place{1, 1}));
  CHECK((LineAndColumn("ab\ncd", 2) == Place{1, 3}));
  CHECK((LineAndColumn("ab\ncd", 3) == Place{2, 1}));
  CHECK((LineAndColumn("ab\ncd", 5) == Place{2, 3}));
}

}  // namespace engine
