// Recipes with mistakes (bad/) and the diagnostics that each must give.
#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "engine/recipe/load.h"
#include "tests/recipe/expected_diagnostics.h"

namespace engine::recipe {
namespace {

namespace fs = std::filesystem;

std::string Actual(const fs::path& path) {
  return ActualDiagnostics(path, Load(path.filename().string()).diagnostics);
}

}  // namespace

TEST_CASE("every bad recipe gives exactly its expected diagnostics") {
  const fs::path before = fs::current_path();
  fs::current_path(fs::path(ENGINE_SOURCE_DIR) / "tests/recipe/bad");
  int files = 0;
  for (const auto& entry : fs::directory_iterator(fs::current_path())) {
    CAPTURE(entry.path().filename().string());
    const std::string expected = ExpectedDiagnostics(entry.path());
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
