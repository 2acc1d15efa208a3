#include "engine/data/missing_data.h"

#include <doctest/doctest.h>

#include "tests/data/temp_dir.h"

namespace engine::data {
namespace {

bool Has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  MESSAGE("no '" << part << "' in: " << text);
  return false;
}

}  // namespace

TEST_CASE("missing data: the command that makes the data set, with the recipe's tokenizer") {
  recipe::Recipe recipe;
  const std::string bytes = HintForMissingData(recipe, "/nowhere/web_text_document");
  CHECK(bytes.starts_with(
      "`engine data build --input TEXT.jsonl --append-eod --output-prefix /nowhere/web` makes it; "));
  CHECK(Has(bytes, "--set data.source=random"));
  recipe.data.tokenizer = {.kind = "gpt2", .vocab_file = "v.json", .merges_file = ""};
  const std::string relative = HintForMissingData(recipe, "data/web_text_document");
  CHECK(Has(
      relative,
      " --output-prefix data/web --tokenizer gpt2 --vocab-file v.json --merges-file merges.txt` makes it"));
  CHECK(Has(relative, "in the working directory " + std::filesystem::current_path().string()));
  CHECK(Has(HintForMissingData(recipe, "corpus"), "--output-prefix PREFIX --tokenizer"));
}

TEST_CASE("missing data: one file of two is there") {
  const TempDir dir;
  WriteFile(dir / "web.idx", "");
  CHECK(HintForMissingData({}, dir / "web")
            .starts_with((dir / "web.idx") + " is there: put " + (dir / "web.bin") +
                         " of the same data set beside it"));
}

TEST_CASE("missing data: a path that is right from the recipe's folder or one above it") {
  const TempDir dir;
  std::filesystem::create_directories(dir / "repository/recipes/small");
  std::filesystem::create_directories(dir / "repository/data");
  WriteFile(dir / "repository/data/web.idx", "");
  recipe::Recipe recipe;
  recipe.path = dir / "repository/recipes/small/a.toml";
  WriteFile(recipe.path, "");
  const std::string hint = HintForMissingData(recipe, "data/web");
  CHECK(Has(hint, "data paths are relative to the working directory, " +
                      std::filesystem::current_path().string() + ": run in " +
                      std::filesystem::canonical(dir / "repository").string() + ", where data/web.idx is"));
  CHECK(Has(HintForMissingData(recipe, "data/other"), "engine data build"));
  WriteFile(dir / "repository/recipes/small/web.idx", "");
  CHECK(Has(HintForMissingData(recipe, "web"), "repository/recipes/small, where web.idx is"));
}

}  // namespace engine::data
