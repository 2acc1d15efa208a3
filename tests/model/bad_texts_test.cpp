// Each file of bad/ begins with the diagnostics that it must give, no more and no fewer:
// "# expect: line:column: severity: message | hint: text", with "name.toml:" before the line if it is another file's.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "engine/model/build.h"
#include "engine/model/load.h"

namespace engine::model {
namespace {

namespace fs = std::filesystem;

std::string ExpectedOf(const fs::path& path) {
  constexpr std::string_view kPrefix = "# expect: ";
  std::ifstream lines(path);
  std::string expected;
  for (std::string line; std::getline(lines, line) && line.rfind(kPrefix, 0) == 0;) {
    expected += line.substr(kPrefix.size()) + "\n";
  }
  return expected;
}

std::string ActualOf(const fs::path& path) {
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

TEST_CASE("every bad text of a model gives exactly its expected diagnostics") {
  const fs::path before = fs::current_path();
  fs::current_path(fs::path(ENGINE_SOURCE_DIR) / "tests/model/bad");
  int files = 0;
  for (const auto& entry : fs::directory_iterator(fs::current_path())) {
    CAPTURE(entry.path().filename().string());
    const std::string expected = ExpectedOf(entry.path());
    CHECK(!expected.empty());
    CHECK(ActualOf(entry.path()) == expected);
    ++files;
  }
  fs::current_path(before);
  CHECK(files >= 70);
}

// The texts of the proposal that steps come from. Modules that are not there yet are refused where they stand.
TEST_CASE("texts of other families are read as far as there are modules") {
  const fs::path before = fs::current_path();
  fs::current_path(fs::path(ENGINE_SOURCE_DIR) / "tests/model/texts");
  int files = 0;
  for (const auto& entry : fs::directory_iterator(fs::current_path())) {
    const std::string name = entry.path().filename().string();
    CAPTURE(name);
    if (name == "blocks.toml") continue;  // of the others
    CHECK(ActualOf(entry.path()) == ExpectedOf(entry.path()));
    ++files;
  }
  const recipe::LoadResult llama = Load("llama.toml");
  fs::current_path(before);
  CHECK(files == 7);
  REQUIRE(llama.ok());
  CHECK(CountParameters(BuildModel(llama.recipe, {.sequence = 64})) == 6'738'415'616);  // Llama 2 7B
}

TEST_CASE("the text that they spoil is good") {
  const recipe::LoadResult loaded = Load(ENGINE_SOURCE_DIR "/tests/model/good.toml");
  CHECK(loaded.ok());
  CHECK(loaded.recipe.model.layers == 2);
  CHECK(loaded.recipe.model.vocab == 259);
  CHECK(loaded.recipe.model.hidden == 64);
}

}  // namespace engine::model
