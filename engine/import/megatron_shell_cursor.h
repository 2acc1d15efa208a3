// Where the reading of a shell text stands.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/import/megatron_shell.h"
#include "engine/import/megatron_shell_tokens.h"

namespace engine::import {

// Stands before a token of a text, goes on to the next ones, and says what is there.
class ShellCursor {
 public:
  // `in` outlives the cursor.
  explicit ShellCursor(const ShellText& in) : in_(in) {}

  // Cuts the text into tokens and stands before the first; those before an error are there too.
  std::optional<ShellError> Begin() { return ShellTokens(in_, &tokens_); }

  const ShellText& in() const { return in_; }
  std::size_t at() const { return at_; }
  bool More() const { return at_ < tokens_.size(); }
  void Next() { ++at_; }
  void SkipNewlines();
  // To the next token that is this word or operator; behind the last one if there is none.
  void SkipToWord(std::string_view word);
  void SkipToOperator(std::string_view op);

  // Of the current token, which there must be.
  const ShellToken& Token() const { return tokens_[at_]; }
  std::string Text() const { return TextOf(tokens_[at_]); }
  std::size_t Place() const;  // in the file
  // The token behind the current one; null if there is none.
  const ShellToken* Following() const { return at_ + 1 < tokens_.size() ? &tokens_[at_ + 1] : nullptr; }
  std::string TextOf(const ShellToken& token) const {
    return in_.text.substr(token.begin, token.end - token.begin);
  }

  // What the current token is; false behind the last one.
  bool IsNewline() const { return Is(ShellToken::Kind::kNewline); }
  bool IsWord() const { return Is(ShellToken::Kind::kWord); }
  bool IsOperator() const { return Is(ShellToken::Kind::kOperator); }
  bool IsWord(std::string_view word) const { return IsWord() && Text() == word; }
  bool IsOperator(std::string_view op) const { return IsOperator() && Text() == op; }
  bool IsRedirection() const;  // an operator such as > or <<
  bool IsDescriptor() const;   // the 2 of 2>&1
  // Whether ( is right behind the current token, as in A=( and ((.
  bool TouchesParenthesis() const;
  bool IsFunctionDefinition() const;  // name ( )

 private:
  bool Is(ShellToken::Kind kind) const { return More() && tokens_[at_].kind == kind; }
  bool IsOperatorAt(std::size_t i, std::string_view op) const;

  const ShellText& in_;
  std::vector<ShellToken> tokens_;
  std::size_t at_ = 0;
};

}  // namespace engine::import
