// The one table of what `engine check` can say: errors by family (E…), warnings one by one (W…). `engine
// explain` prints it, docs/warnings.md is written from it, and `check.allow` takes its warnings.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace engine::recipe {

struct Code {
  std::string_view code;   // "W101"
  std::string_view name;   // "tp-across-nodes"
  std::string_view title;  // one line, no full stop
  std::string_view reason;
  std::string_view remedy;
  bool is_warning() const { return code.front() == 'W'; }
};

const std::vector<Code>& Codes();             // in order
const Code* FindCode(std::string_view code);  // by code or name, in any case; null if there is none
std::vector<std::string> WarningCodes();

// Markdown, ending in a newline: the content of docs/warnings.md.
std::string CodesPage();

}  // namespace engine::recipe
