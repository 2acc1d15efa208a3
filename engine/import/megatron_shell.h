// What the commands of a bash script come to, without running any of it. Understood are variables, arrays,
// quotes,
// ${NAME:-default}, $((sums)), line continuations, comments, here-documents, `[ … ]`, `[[ … ]]`, if and case over known
// values, `bash -c TEXT`, and `pwd`, which is "." as long as the script stays in its folder. What only a
// running shell could tell (the output of a command, a variable from outside) is unknown, with the reason,
// and harms nothing until someone needs it.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/recipe/source.h"

namespace engine::import {

// Text in which each byte knows where in the file it stands, through all expansions.
struct ShellText {
  std::string text;
  std::vector<std::size_t> places;  // byte offsets in the file, one for each byte of `text`
  std::size_t place = 0;            // where it begins, also if it is empty
  std::string unknown;              // why the value is not known; empty: it is

  void Append(const ShellText& other);
  void Append(char c, std::size_t where);
  ShellText Substring(std::size_t begin, std::size_t end) const;
};

ShellText TextAt(const std::string& text, std::size_t place);
ShellText UnknownAt(const std::string& reason, std::size_t place);

// A simple command with its words expanded; redirections are left out.
struct ShellCommand {
  std::vector<ShellText> words;
  std::vector<ShellText> outer;  // the words before `bash -c`, of a command in its text
  std::string uncertain;         // why it may not run, or run often; empty: it runs once
  std::string function = {};     // whose body it is in; empty: of none
};

struct ShellScript {
  std::vector<ShellCommand> commands;                       // in the order of the file
  std::map<std::string, std::vector<ShellText>> variables;  // at the end of the file
  std::set<std::string> taken;                              // names of `chosen` that the file looked at
};

// `outside`: the environment. `chosen`: variables that the user sets, whatever the file sets them to; but
// where it makes a known value of the variable's own (A="$A b", A+=b, A=${A:-b}), that one counts from there
// on. Adds an error where the text is no bash, or none of the understood kind.
ShellScript ReadShell(const recipe::Source& source, const std::map<std::string, std::string>& outside,
                      const std::map<std::string, std::string>& chosen, std::vector<Diagnostic>* diagnostics);

}  // namespace engine::import
