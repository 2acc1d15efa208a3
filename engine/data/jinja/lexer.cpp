#include "engine/data/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "engine/base/shown.h"
#include "engine/base/utf8.h"
#include "engine/data/jinja/text.h"

namespace engine::jinja {
namespace {

// The longer ones first.
constexpr std::array<std::string_view, 26> kSigns = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                     "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                     ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameStart(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsNamePart(char c) { return IsNameStart(c) || IsDigit(c); }
bool IsAllSpace(std::string_view text) { return Strip(text, nullptr, true, true).empty(); }

class Lexer {
 public:
  Lexer(std::string_view source, std::vector<Token>* tokens) : source_(source), tokens_(*tokens) {}

  bool Run(Mistake* mistake) {
    while (at_ < source_.size() && mistake_.what.empty()) Text();
    Add(TokenKind::kEnd, at_, "");
    *mistake = mistake_;
    return mistake_.what.empty();
  }

 private:
  std::string_view rest() const { return source_.substr(at_); }
  bool failed() const { return !mistake_.what.empty(); }
  void Fail(std::size_t place, std::string what) {
    if (!failed()) mistake_ = {static_cast<Place>(place), std::move(what)};
  }
  void Add(TokenKind kind, std::size_t place, std::string_view text) {
    tokens_.push_back({.kind = kind, .place = static_cast<Place>(place), .text = std::string(text)});
  }
  void SkipSpace() { at_ += rest().size() - Strip(rest(), nullptr, true, false).size(); }

  // Text up to the next tag, and that tag.
  void Text() {
    std::size_t tag = at_;
    for (; tag < source_.size(); ++tag) {
      tag = std::min(source_.find('{', tag), source_.size());
      const char next = tag + 1 < source_.size() ? source_[tag + 1] : ' ';
      if (next == '{' || next == '%' || next == '#') break;
    }
    std::string_view text = source_.substr(at_, std::min(tag, source_.size()) - at_);
    if (tag >= source_.size()) {
      if (!text.empty()) Add(TokenKind::kText, at_, text);
      at_ = source_.size();
      return;
    }
    const char kind = source_[tag + 1];
    text = WithoutSpaceBefore(text, tag, kind == '{');
    if (!text.empty()) Add(TokenKind::kText, at_, text);
    at_ = tag + 2;
    if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) ++at_;
    if (kind == '#') return Comment(tag);
    if (kind == '%' && IsRaw()) return Raw(tag);
    Tag(tag, kind == '{');
  }

  // The part of the text before a tag that the tag leaves in place.
  std::string_view WithoutSpaceBefore(std::string_view text, std::size_t tag, bool is_print) const {
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
    if (sign == '-') return Strip(text, nullptr, false, true);
    if (sign == '+' || is_print) return text;
    const std::size_t newline = text.rfind('\n');
    const std::size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    const bool at_line_start = line > 0 || at_ == 0 || source_[at_ - 1] == '\n';
    return at_line_start && IsAllSpace(text.substr(line)) ? text.substr(0, line) : text;
  }

  // Moves behind the end of a tag, "%}" or "#}", whose sign is `sign`.
  void SkipBehind(char sign) {
    if (sign == '-') {
      SkipSpace();
    } else if (sign != '+' && rest().starts_with('\n')) {
      ++at_;
    }
  }

  void Comment(std::size_t tag) {
    const std::size_t end = source_.find("#}", at_);
    if (end == std::string_view::npos) return Fail(tag, "the comment has no end \"#}\"");
    const char sign = end > at_ ? source_[end - 1] : ' ';
    at_ = end + 2;
    SkipBehind(sign);
  }

  // Whether a block tag, whose sign has been passed, is "raw".
  bool IsRaw() const {
    std::string_view inside = Strip(rest(), nullptr, true, false);
    if (!inside.starts_with("raw")) return false;
    inside = Strip(inside.substr(3), nullptr, true, false);
    return inside.starts_with("%}") || inside.starts_with("-%}");
  }

  void Raw(std::size_t tag) {
    const std::size_t begin = source_.find("%}", at_) + 2;
    const bool strips = source_[begin - 3] == '-';
    at_ = begin;
    if (strips) SkipSpace();
    for (std::size_t end = source_.find("{%", at_); end != std::string_view::npos;
         end = source_.find("{%", end + 1)) {
      std::string_view inside = source_.substr(end + 2);
      if (inside.starts_with('-') || inside.starts_with('+')) inside.remove_prefix(1);
      inside = Strip(inside, nullptr, true, false);
      if (!inside.starts_with("endraw")) continue;
      inside = Strip(inside.substr(6), nullptr, true, false);
      const char sign = inside.starts_with('-') || inside.starts_with('+') ? inside[0] : ' ';
      if (sign != ' ') inside.remove_prefix(1);
      if (!inside.starts_with("%}")) continue;
      const std::string_view text = WithoutSpaceBefore(source_.substr(at_, end - at_), end, false);
      if (!text.empty()) Add(TokenKind::kText, at_, text);
      at_ = source_.size() - inside.size() + 2;
      return SkipBehind(sign);
    }
    Fail(tag, "the raw block has no end \"{% endraw %}\"");
  }

  void Tag(std::size_t tag, bool is_print) {
    Add(is_print ? TokenKind::kPrintBegin : TokenKind::kBlockBegin, tag, "");
    const std::string_view end = is_print ? "}}" : "%}";
    std::string open;  // the brackets that are not closed, as what closes them
    while (!failed()) {
      SkipSpace();
      if (at_ >= source_.size()) return Fail(tag, fmt::format("the tag has no end \"{}\"", end));
      const char sign = source_[at_];
      const bool has_sign = sign == '-' || (sign == '+' && !is_print);
      if (open.empty() && rest().substr(has_sign ? 1 : 0).starts_with(end)) {
        Add(is_print ? TokenKind::kPrintEnd : TokenKind::kBlockEnd, at_, "");
        at_ += end.size() + (has_sign ? 1 : 0);
        if (is_print && sign == '-') SkipSpace();
        if (!is_print) SkipBehind(sign);
        return;
      }
      Inside(&open);
    }
  }

  // One token inside a tag.
  void Inside(std::string* open) {
    const char c = source_[at_];
    if (IsNameStart(c)) {
      std::size_t end = at_;
      while (end < source_.size() && IsNamePart(source_[end])) ++end;
      Add(TokenKind::kName, at_, source_.substr(at_, end - at_));
      at_ = end;
    } else if (IsDigit(c)) {
      Number();
    } else if (c == '"' || c == '\'') {
      String(c);
    } else {
      Sign(open);
    }
  }

  void Sign(std::string* open) {
    const auto* const sign = std::find_if(kSigns.begin(), kSigns.end(),
                                          [this](std::string_view s) { return rest().starts_with(s); });
    if (sign == kSigns.end()) {
      const std::string_view character = Characters(rest().substr(0, 4)).front();
      return Fail(at_, fmt::format("\"{}\" has no meaning here", Shown(character)));
    }
    const char c = (*sign)[0];
    if (c == '(' || c == '[' || c == '{') *open += c == '(' ? ')' : (c == '[' ? ']' : '}');
    if (c == ')' || c == ']' || c == '}') {
      if (open->empty()) return Fail(at_, fmt::format("\"{}\" closes nothing", c));
      if (open->back() != c)
        return Fail(at_, fmt::format("\"{}\" stands where \"{}\" has to", c, open->back()));
      open->pop_back();
    }
    Add(TokenKind::kSign, at_, *sign);
    at_ += sign->size();
  }

  // Digits, which "_" may divide.
  std::size_t DigitsEnd(std::size_t from) const {
    std::size_t end = from;
    while (end < source_.size() && (IsDigit(source_[end]) || (source_[end] == '_' && end > from))) ++end;
    while (end > from && source_[end - 1] == '_') --end;
    return end;
  }

  void Number() {
    const std::size_t begin = at_;
    std::size_t end = DigitsEnd(begin);
    bool is_float = false;
    // "x.0.1" has the items 0 and 1 of x, and no number 0.1.
    const bool behind_dot = begin > 0 && source_[begin - 1] == '.';
    if (!behind_dot && end + 1 < source_.size() && source_[end] == '.' && IsDigit(source_[end + 1])) {
      end = DigitsEnd(end + 1);
      is_float = true;
    }
    if (!behind_dot && end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      const std::size_t sign =
          end + 1 < source_.size() && (source_[end + 1] == '-' || source_[end + 1] == '+') ? 1 : 0;
      if (const std::size_t behind = DigitsEnd(end + 1 + sign); behind > end + 1 + sign) {
        end = behind;
        is_float = true;
      }
    }
    std::string digits(source_.substr(begin, end - begin));
    std::erase(digits, '_');
    const char next = end < source_.size() ? source_[end] : ' ';
    const bool leads_with_zero = !is_float && digits.size() > 1 && digits[0] == '0';
    if (IsNamePart(next) || (leads_with_zero && digits.find_first_not_of('0') != std::string::npos))
      return Fail(begin, "is no number; there are decimal ones, as 12 and 1.5e3");
    Token token{.kind = is_float ? TokenKind::kFloat : TokenKind::kInteger,
                .place = static_cast<Place>(begin)};
    token.text = digits;
    if (is_float) {
      double number = 0;
      const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), number);
      if (read.ec != std::errc()) return Fail(begin, "the number is too large or too small");
      token.number = number;
    } else {
      std::int64_t number = 0;
      const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), number);
      if (read.ec != std::errc()) return Fail(begin, "the number does not fit into 64 bits");
      token.number = number;
    }
    tokens_.push_back(std::move(token));
    at_ = end;
  }

  void String(char quote) {
    const std::size_t begin = at_++;
    std::string text;
    while (at_ < source_.size() && source_[at_] != quote && !failed()) {
      if (source_[at_] == '\\') {
        Escape(&text);
      } else {
        text += source_[at_++];
      }
    }
    if (at_ >= source_.size()) return Fail(begin, fmt::format("the string has no end {}", quote));
    ++at_;
    Add(TokenKind::kString, begin, text);
  }

  // Python's escapes, of which an unknown one stays as it is.
  void Escape(std::string* text) {
    const std::size_t begin = at_++;
    if (at_ >= source_.size()) return;
    const char c = source_[at_++];
    constexpr std::string_view kNames = "abfnrtv\\'\"\n";
    constexpr std::string_view kValues = "\a\b\f\n\r\t\v\\'\"";
    if (const std::size_t known = kNames.find(c); known != std::string_view::npos) {
      if (c != '\n') *text += kValues[known];  // a line break behind a backslash is nothing
    } else if (c == 'x' || c == 'u' || c == 'U') {
      CodePoint(begin, c == 'x' ? 2 : (c == 'u' ? 4 : 8), text);
    } else if (c >= '0' && c <= '7') {
      char32_t value = static_cast<char32_t>(c - '0');
      for (int i = 0; i < 2 && at_ < source_.size() && source_[at_] >= '0' && source_[at_] <= '7'; ++i)
        value = value * 8 + static_cast<char32_t>(source_[at_++] - '0');
      AppendUtf8(value, text);
    } else if (c == 'N') {
      Fail(begin, "characters by name, \"\\N{...}\", are not supported; \"\\u....\" names one by its number");
    } else {
      *text += '\\';
      *text += c;
    }
  }

  void CodePoint(std::size_t begin, std::size_t digits, std::string* text) {
    std::uint32_t value = 0;
    const std::string_view number = rest().substr(0, digits);
    const auto read = std::from_chars(number.data(), number.data() + number.size(), value, 16);
    if (number.size() < digits || read.ptr != number.data() + digits || value > 0x10FFFF ||
        (value >= 0xD800 && value < 0xE000))
      return Fail(begin, fmt::format("the escape \"\\{}\" is no character",
                                     Shown(source_.substr(begin + 1, digits + 1))));
    AppendUtf8(static_cast<char32_t>(value), text);
    at_ += digits;
  }

  std::string_view source_;
  std::vector<Token>& tokens_;
  std::size_t at_ = 0;
  Mistake mistake_;
};

}  // namespace

bool CutIntoTokens(std::string_view source, std::vector<Token>* tokens, Mistake* mistake) {
  return Lexer(source, tokens).Run(mistake);
}

}  // namespace engine::jinja
