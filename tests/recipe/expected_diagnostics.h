// Files that begin with the diagnostics that they must give, no more and no fewer:
// "# expect: line:column: severity: message | hint: text", with "name.toml:" before the line if it is another
// file's.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "engine/base/diagnostic.h"
#include "tests/recipe/test_files.h"

namespace engine::recipe {

inline std::string ExpectedDiagnostics(const std::filesystem::path& path) {
  constexpr std::string_view kPrefix = "# expect: ";
  std::istringstream lines(ReadText(path));
  std::string expected;
  for (std::string line; std::getline(lines, line) && line.rfind(kPrefix, 0) == 0;) {
    expected += line.substr(kPrefix.size()) + "\n";
  }
  return expected;
}

// In the same form. The current folder is the file's, so that messages name files as they stand in `extends`.
inline std::string ActualDiagnostics(const std::filesystem::path& path,
                                     const std::vector<Diagnostic>& diagnostics) {
  std::string actual;
  for (const Diagnostic& d : diagnostics) {
    const std::string file = std::filesystem::path(d.span.file).filename().string();
    if (file != path.filename().string()) actual += file + ":";
    actual += fmt::format("{}:{}: {}: {}", d.span.line, d.span.column,
                          d.severity == Severity::kError ? "error" : "other", d.message);
    actual += d.hint.empty() ? "\n" : fmt::format(" | hint: {}\n", d.hint);
  }
  return actual;
}

}  // namespace engine::recipe
