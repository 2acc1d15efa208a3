// The table of optimizers, and what of it the recipe repeats.
#include "engine/plan/optimizer.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "engine/recipe/fields.h"

namespace engine::plan {

TEST_CASE("optimizers: the recipe's kinds are the table's, in its order") {
  std::vector<std::string> kinds;
  for (const OptimizerDef& optimizer : AllOptimizers()) {
    kinds.emplace_back(optimizer.kind);
    CHECK(FindOptimizer(optimizer.kind) == &optimizer);
  }
  CHECK(recipe::FindField("optimizer.kind")->words == kinds);
  CHECK(FindOptimizer("adam") == nullptr);
}

TEST_CASE("optimizers: their attributes are keys that go with their kind, and no other key does") {
  recipe::Recipe recipe;
  std::set<std::string> keys;
  for (const OptimizerDef& optimizer : AllOptimizers()) {
    for (const OptimizerAttribute& attribute : optimizer.attributes) {
      const std::string key = "optimizer." + std::string(attribute.name);
      CAPTURE(key);
      const recipe::Field* field = recipe::FindField(key);
      REQUIRE(field != nullptr);
      CHECK(std::get<double*>(field->member(recipe)) == &(recipe.optimizer.*attribute.value));
      const recipe::Condition* condition = field->ConditionOn("optimizer.kind");
      REQUIRE(condition != nullptr);
      CHECK(condition->word == optimizer.kind);
      keys.insert(key);
    }
  }
  for (const recipe::Field& field : recipe::Fields()) {
    if (field.ConditionOn("optimizer.kind") != nullptr) CHECK_MESSAGE(keys.contains(field.key), field.key);
  }
}

// A checkpoint's tensors say which optimizer wrote it.
TEST_CASE(
    "optimizers: no two have the same folders in checkpoints, and AdamW's are those of the first "
    "checkpoints") {
  std::set<std::set<std::string>> sets;
  for (const OptimizerDef& optimizer : AllOptimizers()) {
    std::set<std::string> folders;
    for (const OptimizerState& state : optimizer.states) CHECK(folders.emplace(state.folder).second);
    CHECK(sets.insert(folders).second);
    CHECK(!optimizer.states.empty());  // else any checkpoint would do
  }
  CHECK(sets.contains({"adam.m", "adam.v"}));
  CHECK(sets.contains({"optimizer/momentum"}));
}

}  // namespace engine::plan
