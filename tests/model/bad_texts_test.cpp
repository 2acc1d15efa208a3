// Texts of models with mistakes (bad/) and the diagnostics that each must give.
#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "engine/model/build.h"
#include "engine/model/load.h"
#include "tests/recipe/expected_diagnostics.h"

namespace engine::model {
namespace {

namespace fs = std::filesystem;

std::string ActualOf(const fs::path& path) {
  return recipe::ActualDiagnostics(path, Load(path.filename().string()).diagnostics);
}

}  // namespace

TEST_CASE("every bad text of a model gives exactly its expected diagnostics") {
  const fs::path before = fs::current_path();
  fs::current_path(fs::path(ENGINE_SOURCE_DIR) / "tests/model/bad");
  int files = 0;
  for (const auto& entry : fs::directory_iterator(fs::current_path())) {
    CAPTURE(entry.path().filename().string());
    const std::string expected = recipe::ExpectedDiagnostics(entry.path());
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
    CHECK(ActualOf(entry.path()) == recipe::ExpectedDiagnostics(entry.path()));
    ++files;
  }
  const recipe::LoadResult llama = Load("llama.toml");
  const recipe::LoadResult mixtral = Load("mixtral.toml");
  fs::current_path(before);
  CHECK(files == 7);
  REQUIRE(llama.ok());
  CHECK(CountParameters(BuildModel(llama.recipe, {.sequence = 64})) == 6'738'415'616);  // Llama 2 7B
  REQUIRE(mixtral.ok());
  CHECK(mixtral.recipe.model.experts == 8);
  CHECK(CountParameters(BuildModel(mixtral.recipe, {.sequence = 64})) == 46'702'792'704);  // Mixtral 8x7B
}

TEST_CASE("blocks and dims that nothing uses are no mistake, and not told of files that others extend") {
  const std::string folder = ENGINE_SOURCE_DIR "/tests/model/bad/";
  CHECK(Load(folder + "unused.toml").ok());
  const recipe::TemporaryFolder files;
  CHECK(Load(files.Write("a.toml", "extends = \"" + folder + "unused.toml\"\n")).diagnostics.empty());
  const recipe::LoadResult set =
      Load(files.Write("b.toml", "extends = \"" + folder + "unused.toml\"\n"), {{"model.dims.Z=9"}, ""});
  CHECK(set.ok());
  REQUIRE(set.diagnostics.size() == 1);
  CHECK(Format(set.diagnostics[0]).starts_with("--set:1:14: note: dims.Z is not used: "));
}

TEST_CASE("the text that they spoil is good") {
  const recipe::LoadResult loaded = Load(ENGINE_SOURCE_DIR "/tests/model/good.toml");
  CHECK(loaded.diagnostics.empty());
  CHECK(loaded.recipe.model.layers == 2);
  CHECK(loaded.recipe.model.vocab == 259);
  CHECK(loaded.recipe.model.hidden == 64);
}

}  // namespace engine::model
