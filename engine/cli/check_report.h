// What `engine check` found, in the forms that people and CI systems read.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/base/diagnostic.h"

namespace engine::cli {

struct CheckedFile {
  std::string file;  // as the user named it
  std::vector<Diagnostic> diagnostics;
  bool is_study = false;
};

struct CheckReport {
  std::vector<CheckedFile> files;
  bool strict = false;  // warnings fail
  bool colors = false;  // in the form "text"

  bool Passes(const CheckedFile& file) const;
  bool Passes() const;
};

// The names that ReportText knows.
std::vector<std::string> ReportFormats();

// Each ends in a newline or is empty.
//   text     as compilers write it, then a line of counts
//   json     {"ok", "files": [{"file", "ok", "diagnostics": [{"severity", "code", "file", "line", …}]}]}
//   sarif    SARIF 2.1.0 (OASIS): one run; columns in code points
//   junit    a test case a recipe: what makes it fail is its failure, the rest its output
//   github   workflow commands of GitHub Actions: annotations in a pull request
std::string ReportText(const CheckReport& report, std::string_view format);

}  // namespace engine::cli
