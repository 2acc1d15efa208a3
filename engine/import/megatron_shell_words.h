// Variables of a shell text, and what its words come to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/import/megatron_shell.h"

namespace engine::import {

// All expansions of a file together, so that A="$A$A" does not fill the memory.
constexpr std::int64_t kMaxShellBytes = 4 << 20;

// What is known of one variable; a plain one has one item.
struct ShellVariables {
  std::map<std::string, std::vector<ShellText>> values;
  std::map<std::string, std::string> outside;
  std::map<std::string, std::string> chosen;  // by the user
  std::set<std::string> taken;                // of `chosen`, what was read
  std::set<std::string> read;                 // every name that was read since it was last taken out
  bool moved = false;                         // into another folder
  std::int64_t budget = kMaxShellBytes;       // bytes and fields that expansions may still make

  // The items of a variable that the file, the user or the environment sets; nullopt: none does.
  std::optional<std::vector<ShellText>> Find(const std::string& name, std::size_t place);

  // A value that the user has chosen stays if the script would make it unknown.
  void Assign(const std::string& name, std::vector<ShellText> items);
};

// One word of a text, from `begin` to `end`, as a command would get it: none, one, or several fields.
std::vector<ShellText> ExpandToFields(const ShellText& in, std::size_t begin, std::size_t end,
                                      ShellVariables* variables);
// The same as the value of a variable: not split.
ShellText ExpandToValue(const ShellText& in, std::size_t begin, std::size_t end, ShellVariables* variables);

// The value of an arithmetic expression, all of it at `place`; unknown where it is none of + - * / % ( ) over
// integers.
ShellText EvaluateShellSum(const ShellText& expression, std::size_t place, ShellVariables* variables);

// A whole number, with or without a sign; nullopt: it is none.
std::optional<std::int64_t> ShellInteger(const std::string& text);

bool IsOneOf(std::string_view word, std::initializer_list<std::string_view> words);

// The last part of a path: "torchrun" of "/usr/bin/torchrun".
std::string ShellFileName(const std::string& path);

}  // namespace engine::import
