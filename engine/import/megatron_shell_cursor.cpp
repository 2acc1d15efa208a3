#include "engine/import/megatron_shell_cursor.h"

namespace engine::import {
namespace {

bool Redirects(const std::string& op) { return op.find_first_of("<>") != std::string::npos; }

}  // namespace

void ShellCursor::SkipNewlines() {
  while (IsNewline()) Next();
}

void ShellCursor::SkipToWord(std::string_view word) {
  while (More() && !IsWord(word)) Next();
}

void ShellCursor::SkipToOperator(std::string_view op) {
  while (More() && !IsOperator(op)) Next();
}

std::size_t ShellCursor::Place() const {
  const std::size_t begin = Token().begin;
  return begin < in_.places.size() ? in_.places[begin] : in_.place;
}

bool ShellCursor::IsRedirection() const { return IsOperator() && Redirects(Text()); }

bool ShellCursor::IsDescriptor() const {
  const ShellToken* following = Following();
  return following != nullptr && following->kind == ShellToken::Kind::kOperator &&
         Redirects(TextOf(*following)) && following->begin == Token().end &&
         Text().find_first_not_of("0123456789") == std::string::npos;
}

bool ShellCursor::TouchesParenthesis() const {
  return IsOperatorAt(at_ + 1, "(") && tokens_[at_ + 1].begin == Token().end;
}

bool ShellCursor::IsFunctionDefinition() const {
  return IsOperatorAt(at_ + 1, "(") && IsOperatorAt(at_ + 2, ")") && Text().back() != '=';
}

bool ShellCursor::IsOperatorAt(std::size_t i, std::string_view op) const {
  return i < tokens_.size() && tokens_[i].kind == ShellToken::Kind::kOperator && TextOf(tokens_[i]) == op;
}

}  // namespace engine::import
