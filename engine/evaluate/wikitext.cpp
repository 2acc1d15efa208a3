#include "engine/evaluate/wikitext.h"

#include <algorithm>
#include <utility>

#include "engine/evaluate/white_space.h"

namespace engine::evaluate {
namespace {

// str.replace: occurrences from the left, which do not overlap.
void Replace(std::string_view from, std::string_view to, std::string* text) {
  std::string replaced;
  std::size_t at = 0;
  for (std::size_t found = 0; (found = text->find(from, at)) != std::string::npos; at = found + from.size()) {
    replaced.append(*text, at, found - at);
    replaced += to;
  }
  replaced.append(*text, at);
  *text = std::move(replaced);
}

// re.sub(r"/' [0-9]/", r"/'[0-9]/", text): the replacement is no pattern, so a digit there becomes "[0-9]".
void ReplaceDigitInSlashes(std::string* text) {
  for (std::size_t at = 0; (at = text->find("/' ", at)) != std::string::npos; ++at) {
    const std::string_view rest = std::string_view(*text).substr(at + 3);
    if (rest.size() >= 2 && rest[0] >= '0' && rest[0] <= '9' && rest[1] == '/')
      text->replace(at, 5, "/'[0-9]/");
  }
}

// re.sub(r"OPEN\s*([^CLOSE]*?)\s*CLOSE", r"OPEN\1CLOSE", text): from an opening sign to the first closing one behind it,
// without the white space inside of both.
void CloseUp(char open, char close, std::string* text) {
  std::string closed;
  std::size_t at = 0;
  while (true) {
    const std::size_t begin = text->find(open, at);
    const std::size_t end = begin == std::string::npos ? begin : text->find(close, begin + 1);
    if (end == std::string::npos) break;
    closed.append(*text, at, begin + 1 - at);
    closed += Strip(std::string_view(*text).substr(begin + 1, end - begin - 1));
    closed += close;
    at = end + 1;
  }
  closed.append(*text, at);
  *text = std::move(closed);
}

}  // namespace

std::string DetokenizeWikitext(std::string_view given) {
  std::string text(given);
  Replace("s '", "s'", &text);
  ReplaceDigitInSlashes(&text);
  for (const auto& [from, to] : {std::pair(" @-@ ", "-"), {" @,@ ", ","}, {" @.@ ", "."}})
    Replace(from, to, &text);
  for (const auto& [from, to] :
       {std::pair(" : ", ": "), {" ; ", "; "}, {" . ", ". "}, {" ! ", "! "}, {" ? ", "? "}, {" , ", ", "}}) {
    Replace(from, to, &text);
  }
  for (const auto& [open, close] : {std::pair('(', ')'), {'[', ']'}, {'{', '}'}, {'"', '"'}, {'\'', '\''}})
    CloseUp(open, close, &text);
  for (const auto& [from, to] : {std::pair("= = = =", "===="),
                                 {"= = =", "==="},
                                 {"= =", "=="},
                                 {" \xC2\xB0 ", "\xC2\xB0"},  // the sign of degrees
                                 {" \n", "\n"},
                                 {"\n ", "\n"},
                                 {" N ", " 1 "},
                                 {" 's", "'s"}}) {
    Replace(from, to, &text);
  }
  return text;
}

}  // namespace engine::evaluate
