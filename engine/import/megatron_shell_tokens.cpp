#include "engine/import/megatron_shell_tokens.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace engine::import {
namespace {

using TokenKind = ShellToken::Kind;

// Longer ones first.
constexpr std::array<std::string_view, 18> kOperators = {
    "&>>", "<<<", "<<-", "&&", "||", "|&", ";;", "<<", ">>", "<&", ">&", "&>", ";", "&", "|", "(", ")", "<"};

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
bool EndsWord(char c) {
  return IsBlank(c) || std::string_view("\n;&|<>()").find(c) != std::string_view::npos;
}

// The end of a bracket that nests, from its opening mark at `at`; quotes inside are skipped whole.
std::optional<std::size_t> EndOfBracket(const std::string& text, std::size_t at, char open, char close,
                                        int nesting) {
  int depth = 0;
  for (std::size_t i = at; i < text.size();) {
    std::optional<std::size_t> next = i + 1;
    if (text[i] == '\\') {
      next = i + 2;
    } else if (text[i] == '\'') {
      next = EndOfSingleQuote(text, i);
    } else if (text[i] == '"') {
      next = EndOfDoubleQuote(text, i, nesting);
    } else if (text[i] == '$' && i + 1 < text.size() && text[i + 1] == '{' && open == '(') {
      next = EndOfDollar(text, i, nesting);
    } else if (text[i] == open) {
      if (++depth > kMaxShellNesting) return std::nullopt;
    } else if (text[i] == close && --depth == 0) {
      return i + 1;
    }
    if (!next) return std::nullopt;
    i = *next;
  }
  return std::nullopt;
}

class ShellTokenizer {
 public:
  ShellTokenizer(const ShellText& in, std::vector<ShellToken>* tokens)
      : in_(in), text_(in.text), tokens_(tokens) {}

  std::optional<ShellError> Run() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (IsBlank(c)) {
        ++at_;
      } else if (c == '\\' && LineEnd(at_ + 1) > 0) {
        at_ += 1 + LineEnd(at_ + 1);
      } else if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (c == '\n') {
        tokens_->push_back({TokenKind::kNewline, at_, at_ + 1});
        ++at_;
        SkipDocuments();
      } else if (!Operator()) {
        if (std::optional<ShellError> error = Word()) return error;
      }
    }
    tokens_->push_back({TokenKind::kNewline, text_.size(), text_.size()});
    return std::nullopt;
  }

 private:
  // Length of a line end at `at`, 0 if there is none.
  std::size_t LineEnd(std::size_t at) const {
    if (text_.compare(at, 1, "\n") == 0) return 1;
    return text_.compare(at, 2, "\r\n") == 0 ? 2 : 0;
  }

  bool Operator() {
    std::string_view found = text_[at_] == '>' ? ">" : "";
    for (const std::string_view op : kOperators) {
      if (text_.compare(at_, op.size(), op) == 0) {
        found = op;
        break;
      }
    }
    if (found.empty()) return false;
    tokens_->push_back({TokenKind::kOperator, at_, at_ + found.size()});
    document_next_ = found == "<<" || found == "<<-";
    at_ += found.size();
    return true;
  }

  std::optional<ShellError> Word() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && !EndsWord(text_[at_])) {
      std::optional<std::size_t> next = at_ + 1;
      const char c = text_[at_];
      if (c == '\\') next = std::min(at_ + 2, text_.size());
      if (c == '\'') next = EndOfSingleQuote(text_, at_);
      if (c == '"') next = EndOfDoubleQuote(text_, at_);
      if (c == '`') next = EndOfBackquote(text_, at_);
      if (c == '$') next = EndOfDollar(text_, at_);
      if (!next) {
        const std::size_t length = c == '$' ? 2 : 1;
        return ShellError{in_.places[at_],
                          "this " + text_.substr(at_, length) + " is never closed, or nested too deeply"};
      }
      at_ = *next;
    }
    tokens_->push_back({TokenKind::kWord, begin, at_});
    if (document_next_) documents_.push_back(Unquoted(text_.substr(begin, at_ - begin)));
    document_next_ = false;
    return std::nullopt;
  }

  static std::string Unquoted(std::string word) {
    std::erase_if(word, [](char c) { return c == '\'' || c == '"' || c == '\\'; });
    return word;
  }

  // The bodies of here-documents begin behind the line that asks for them.
  void SkipDocuments() {
    for (const std::string& end : documents_) {
      while (at_ < text_.size()) {
        const std::size_t line_end = std::min(text_.find('\n', at_), text_.size());
        std::string line = text_.substr(at_, line_end - at_);
        at_ = std::min(line_end + 1, text_.size());
        line.erase(0, line.find_first_not_of('\t') == std::string::npos ? line.size()
                                                                        : line.find_first_not_of('\t'));
        if (!line.empty() && line.back() == '\r') line.pop_back();
        if (line == end) break;
      }
    }
    documents_.clear();
  }

  const ShellText& in_;
  const std::string& text_;
  std::vector<ShellToken>* tokens_;
  std::size_t at_ = 0;
  bool document_next_ = false;
  std::vector<std::string> documents_;  // closing words of here-documents that this line asks for
};

}  // namespace

std::optional<std::size_t> EndOfSingleQuote(const std::string& text, std::size_t at) {
  const std::size_t end = text.find('\'', at + 1);
  if (end == std::string::npos) return std::nullopt;
  return end + 1;
}

std::optional<std::size_t> EndOfDoubleQuote(const std::string& text, std::size_t at, int nesting) {
  if (++nesting > kMaxShellNesting) return std::nullopt;
  for (std::size_t i = at + 1; i < text.size();) {
    std::optional<std::size_t> next = i + 1;
    if (text[i] == '"') return i + 1;
    if (text[i] == '\\') next = i + 2;
    if (text[i] == '$') next = EndOfDollar(text, i, nesting);
    if (text[i] == '`') next = EndOfBackquote(text, i);
    if (!next) return std::nullopt;
    i = *next;
  }
  return std::nullopt;
}

std::optional<std::size_t> EndOfBackquote(const std::string& text, std::size_t at) {
  for (std::size_t i = at + 1; i < text.size(); ++i) {
    if (text[i] == '`') return i + 1;
    if (text[i] == '\\') ++i;
  }
  return std::nullopt;
}

std::optional<std::size_t> EndOfDollar(const std::string& text, std::size_t at, int nesting) {
  if (++nesting > kMaxShellNesting) return std::nullopt;
  if (at + 1 >= text.size()) return at + 1;
  const char c = text[at + 1];
  if (c == '(') return EndOfBracket(text, at + 1, '(', ')', nesting);
  if (c == '{') return EndOfBracket(text, at + 1, '{', '}', nesting);
  const std::size_t name = NameLength(text, at + 1);
  if (name > 0) return at + 1 + name;
  return std::string_view("0123456789@*#?$!-").find(c) != std::string_view::npos ? at + 2 : at + 1;
}

bool IsNameStart(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsNameByte(char c) { return IsNameStart(c) || (c >= '0' && c <= '9'); }

std::size_t NameLength(const std::string& text, std::size_t at) {
  if (at >= text.size() || !IsNameStart(text[at])) return 0;
  std::size_t end = at;
  while (end < text.size() && IsNameByte(text[end])) ++end;
  return end - at;
}

std::optional<ShellError> ShellTokens(const ShellText& in, std::vector<ShellToken>* tokens) {
  return ShellTokenizer(in, tokens).Run();
}

}  // namespace engine::import
