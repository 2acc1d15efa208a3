// Each file of bad/ begins with the diagnostics that it must give, no more and no fewer:
// "# expect: line:column: severity: message | hint: text", with "name.toml:" before the line if it is another
// file's.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "engine/recipe/load.h"
#include "tests/recipe/test_files.h"

namespace engine::recipe {
namespace {

namespace fs = std::filesystem;

std::string Expected(const fs::path& path) {
  constexpr std::string_view kPrefix = "# expect: ";
  std::istringstream lines(ReadText(path));
  std::string expected;
  for (std::string line; std::getline(lines, line) && line.rfind(kPrefix, 0) == 0;) {
    expected += line.substr(kPrefix.size()) + "\n";
  }
  return expected;
}

// The current folder is the file's, so that messages name files as they stand in `extends`.
std::string Actual(const fs::path& path) {
  std::string actual;
  for (const Diagnostic& d : Load(path.filename().string()).diagnostics) {
    const std::string file = fs::path(d.span.file).filename().string();
    if (file != path.filename().string()) actual += file + ":";
    actual += fmt::format("{}:{}: {}: {}", d.span.line, d.span.column,
                          d.severity == Severity::kError ? "error" : "other", d.message);
    actual += d.hint.empty() ? "\n" : fmt::format(" | hint: {}\n", d.hint);
  }
  return actual;
}

}  // namespace

TEST_CASE("every bad recipe gives exactly its expected diagnostics") {
  const fs::path before = fs::current_path();
  fs::current_path(fs::path(ENGINE_SOURCE_DIR) / "tests/recipe/bad");
  int files = 0;
  for (const auto& entry : fs::directory_iterator(fs::current_path())) {
    CAPTURE(entry.path().filename().string());
    const std::string expected = Expected(entry.path());
    CHECK(!expected.empty());
    CHECK(Actual(entry.path()) == expected);
    ++files;
  }
  fs::current_path(before);
  CHECK(files >= 100);
}

TEST_CASE("the recipe that they spoil is good") {
  const LoadResult result = Load(std::string(ENGINE_SOURCE_DIR) + "/tests/recipe/base.toml");
  CHECK(result.diagnostics.empty());
}

}  // namespace engine::recipe
