// The text of a template as tokens. White space around tags goes as Jinja's options trim_blocks and lstrip_blocks say: the line
// break behind a block or a comment, and blanks before one at the beginning of a line; "-" inside a tag takes all white space on
// its side, "+" keeps it.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <string_view>
#include <vector>

#include "engine/data/jinja/syntax.h"

namespace engine::jinja {

enum class TokenKind : std::uint8_t {
  kText,
  kPrintBegin,  // {{
  kPrintEnd,
  kBlockBegin,  // {%
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kSign,  // operators and brackets
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  Place place = 0;
  std::string text = {};  // of a string: its value
  Value number = {};      // of kInteger and kFloat
};

// A mistake at a byte of the source.
struct Mistake {
  Place place = 0;
  std::string what;
  bool is_bound = false;  // more steps or bytes than there may be
};

// `source` has "\n" alone as line break. False: *mistake says why it cannot be cut.
bool CutIntoTokens(std::string_view source, std::vector<Token>* tokens, Mistake* mistake);

}  // namespace engine::jinja
