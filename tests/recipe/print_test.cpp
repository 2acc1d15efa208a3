#include "engine/recipe/print.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "engine/recipe/fields.h"
#include "engine/recipe/load.h"
#include "tests/recipe/test_files.h"

namespace engine::recipe {

TEST_CASE("the printed recipe loads to the same recipe, with provenance in comments") {
  const std::string path = std::string(ENGINE_SOURCE_DIR) + "/recipes/gpt-1t-16384gpu.toml";
  const LoadResult result = Load(path, {{"training.seed=5", "data.paths=[\"a\\\"b\\n\", \"é\"]"}, ""});
  REQUIRE(result.ok());
  const std::string text = ToToml(result.recipe);
  const LoadResult again = LoadText(text, "resolved.toml");
  CHECK(again.diagnostics.empty());
  CHECK(Diff(result.recipe, again.recipe).empty());
  CHECK(text.find("seed = 5                                  # --set:1:15\n") != std::string::npos);
  CHECK(text.find("init_std = 0.02                           # default\n") != std::string::npos);
  CHECK(text.find("configs/models/megatron-1t.toml:6:10\n") != std::string::npos);
  CHECK(text.find("extends") == std::string::npos);
}

TEST_CASE("the printed recipe has no key of another optimizer, which would not load") {
  const LoadResult sgd = LoadText(BaseRecipe(), "a", {{"optimizer.kind=sgd", "optimizer.momentum=0.5"}, ""});
  REQUIRE(sgd.ok());
  const std::string text = ToToml(sgd.recipe);
  CHECK(text.find("\nmomentum = 0.5 ") != std::string::npos);
  CHECK(text.find("\nbeta1 = ") == std::string::npos);
  const LoadResult again = LoadText(text, "resolved.toml");
  CHECK(again.diagnostics.empty());
  CHECK(Diff(sgd.recipe, again.recipe).empty());
  const std::string adamw = ToToml(LoadText(BaseRecipe(), "a").recipe);
  CHECK(adamw.find("\nmomentum = ") == std::string::npos);
  CHECK(adamw.find("\nbeta1 = 0.9 ") != std::string::npos);
}

TEST_CASE("a file name cannot break out of its comment") {
  const LoadResult result = LoadText(BaseRecipe(), "a\n[zebra]\n");
  REQUIRE(result.ok());
  CHECK(LoadText(ToToml(result.recipe), "b").ok());
}

TEST_CASE("JSON has every field with its origin") {
  const LoadResult result = LoadText(BaseRecipe(), "base.toml");
  const nlohmann::json json = nlohmann::json::parse(ToJson(result.recipe));
  CHECK(json.size() == Fields().size());
  CHECK(json["model.layers"]["value"] == 8);
  CHECK(json["model.layers"]["location"] == "base.toml:3:10");
  CHECK(json["model.layers"]["origin"] == "file");
  CHECK(json["data.paths"]["value"][1] == "b");
  CHECK(json["optimizer.beta2"]["origin"] == "default");
}

TEST_CASE("differences are keys with both values") {
  const Recipe a = LoadText(BaseRecipe(), "a").recipe;
  const Recipe b = LoadText(BaseRecipe(), "b", {{"model.layers=4", "data.split='1,1'"}, ""}).recipe;
  const std::vector<Change> changes = Diff(a, b);
  REQUIRE(changes.size() == 2);
  CHECK(changes[0].key == "model.layers");
  CHECK(changes[0].before == "8");
  CHECK(changes[0].after == "4");
  CHECK(changes[1].key == "data.split");
  CHECK(changes[1].after == "\"1,1\"");
}

}  // namespace engine::recipe
