// The tokens of a shell text: words as they are written, operators and line ends.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "engine/import/megatron_shell.h"

namespace engine::import {

struct ShellToken {
  enum class Kind { kWord, kOperator, kNewline } kind = Kind::kWord;
  std::size_t begin = 0, end = 0;  // bytes of the text
};

struct ShellError {
  std::size_t place = 0;  // byte offset in the file
  std::string message;
};

// Comments, continued lines, and the bodies of here-documents are left out.
std::optional<ShellError> ShellTokens(const ShellText& in, std::vector<ShellToken>* tokens);

// Quotes inside of expansions inside of quotes, and texts inside of `bash -c` texts.
constexpr int kMaxShellNesting = 32;

// The end of what begins at `at` of `text`, behind its closing mark: a quote, $name, ${…}, $(…), $((…)), `…`.
// nullopt: it has none, or is nested too
// deeply.
std::optional<std::size_t> EndOfSingleQuote(const std::string& text, std::size_t at);
std::optional<std::size_t> EndOfDoubleQuote(const std::string& text, std::size_t at, int nesting = 0);
std::optional<std::size_t> EndOfDollar(const std::string& text, std::size_t at, int nesting = 0);
std::optional<std::size_t> EndOfBackquote(const std::string& text, std::size_t at);

bool IsNameStart(char c);
bool IsNameByte(char c);
// The length of the variable name at `at`; 0 if there is none.
std::size_t NameLength(const std::string& text, std::size_t at);

}  // namespace engine::import
