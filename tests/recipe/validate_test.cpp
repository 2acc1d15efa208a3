// The rules themselves are tested by the files of bad/; here is what they share.
#include "engine/recipe/validate.h"

#include <doctest/doctest.h>

#include "engine/recipe/load.h"
#include "engine/recipe/rules.h"
#include "engine/recipe/split.h"
#include "tests/recipe/test_files.h"

namespace engine::recipe {

TEST_CASE("nearest legal numbers") {
  CHECK(NearestMultiples(100, 8) == "96 or 104");
  CHECK(NearestMultiples(3, 8) == "8");
  CHECK(NearestDivisors(3, 12) == "3");
  CHECK(NearestDivisors(5, 12) == "4 or 6");
  CHECK(NearestDivisors(50, 12) == "12");
  CHECK(NearestDivisors(3, 1 << 30) == "2 or 4");
  CHECK(Counted(1, "node") == "1 node");
  CHECK(Counted(2, "node") == "2 nodes");
  CHECK(ProductOrOverflow({1 << 30, 1 << 30}) == std::int64_t{1} << 60);
  CHECK(ProductOrOverflow({std::int64_t{1} << 32, std::int64_t{1} << 31}) == -1);
}

TEST_CASE("split strings") {
  CHECK(*ParseSplit("969, 30, 1") == std::array<double, 3>{969, 30, 1});
  CHECK(*ParseSplit("1") == std::array<double, 3>{1, 0, 0});
  CHECK(*ParseSplit("0.5,.5") == std::array<double, 3>{0.5, 0.5, 0});
  for (const char* bad : {"", ",", "1,", "a", "-1,2", "1e3", "nan", "inf", "0", "0,0,0", "1,1,1,1", "1;2"}) {
    CAPTURE(bad);
    CHECK(!ParseSplit(bad).ok());
  }
}

TEST_CASE("a rule whose input is unusable is skipped, the others run") {
  Recipe recipe = LoadText(BaseRecipe(), "base.toml").recipe;
  recipe.model.attention.heads = 7;
  recipe.parallelism.expert_tp = 2;
  CHECK(Validate(recipe).size() == 3);  // hidden by heads, heads by kv_heads, experts
  CHECK(Validate(recipe, {"model.attention.heads"}).size() == 1);
  CHECK(Validate(recipe, {"model.attention.heads", "parallelism.expert_tp"}).empty());
}

}  // namespace engine::recipe
