// Which findings of a Folder two layouts share: none that depends on a key of the recipe in which they differ.
#include "engine/search/fold_keys.h"

#include <absl/hash/hash.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/plan/schedule.h"
#include "engine/recipe/recipe.h"
#include "engine/search/space.h"
#include "engine/search/stage_states.h"

namespace engine::search {
namespace {

constexpr std::int64_t kHalves = 2;

recipe::Recipe Selective() {
  recipe::Recipe recipe;
  recipe.parallelism.dp = 2;
  recipe.parallelism.tp = 2;
  recipe.parallelism.pp = 2;
  recipe.parallelism.cp = 2;
  recipe.training.micro_batch = 4;
  recipe.training.global_batch = 256;
  recipe.recompute.granularity = "selective";
  recipe.recompute.modules = {"norm"};
  return recipe;
}

template <typename Key>
bool Differ(const Key& a, const Key& b) {
  if (a == b) CHECK(absl::Hash<Key>()(a) == absl::Hash<Key>()(b));
  return !(a == b);
}

// Names of the keys that tell two layouts apart.
std::set<std::string> Telling(const recipe::Recipe& a, const recipe::Recipe& b) {
  const compile::FlatExchange exchange;
  const StageShape shape{.blocks = 3};
  std::set<std::string> names;
  const auto see = [&](const char* name, bool differ) {
    if (differ) names.insert(name);
  };
  see("parameters", Differ(ParameterKey::Of(a), ParameterKey::Of(b)));
  see("probe", Differ(ProbeKey::Of(a, kHalves, 3), ProbeKey::Of(b, kHalves, 3)));
  see("evaluation", Differ(EvaluationKey::Of(a, kHalves, {3}), EvaluationKey::Of(b, kHalves, {3})));
  see("block", Differ(BlockKey::Of(a), BlockKey::Of(b)));
  see("states", Differ(StatesKey::Of(a, exchange, shape), StatesKey::Of(b, exchange, shape)));
  see("blocks", Differ(BlocksKey::Of(a.parallelism), BlocksKey::Of(b.parallelism)));
  see("schedule", Differ(ScheduleKey::Of(a), ScheduleKey::Of(b)));
  return names;
}

std::string Words(const std::set<std::string>& names) { return fmt::format("{}", fmt::join(names, " ")); }

struct Change {
  const char* key;  // of SearchedKeys
  std::function<void(recipe::Recipe*)> make;
  std::set<std::string> told_by;
};

std::vector<Change> Changes() {
  using recipe::Recipe;
  const std::set<std::string> all_of_model = {"parameters", "probe", "evaluation", "block", "states"};
  std::set<std::string> all_of_tp = all_of_model;
  all_of_tp.insert("blocks");
  return {
      {"parallelism.dp",
       [](Recipe* r) { r->parallelism.dp = 4; },
       {"probe", "evaluation", "block", "states", "schedule"}},
      {"parallelism.tp", [](Recipe* r) { r->parallelism.tp = 4; }, all_of_tp},
      {"parallelism.cp", [](Recipe* r) { r->parallelism.cp = 4; }, all_of_model},
      {"parallelism.ep",
       [](Recipe* r) { r->parallelism.ep = 2; },
       {"parameters", "probe", "evaluation", "block", "states", "schedule"}},
      {"parallelism.expert_tp", [](Recipe* r) { r->parallelism.expert_tp = 1; }, all_of_tp},
      {"parallelism.pp",
       [](Recipe* r) { r->parallelism.pp = 4; },
       {"probe", "evaluation", "block", "states", "blocks", "schedule"}},
      {"parallelism.schedule",
       [](Recipe* r) { r->parallelism.schedule = plan::kZeroBubble; },
       {"probe", "schedule"}},
      {"parallelism.sequence_parallel", [](Recipe* r) { r->parallelism.sequence_parallel = true; },
       all_of_model},
      {"parallelism.zero_stage", [](Recipe* r) { r->parallelism.zero_stage = 1; }, {"states"}},
      {"training.micro_batch",
       [](Recipe* r) { r->training.micro_batch = 8; },
       {"probe", "evaluation", "schedule"}},
      {"parallelism.virtual_stages",
       [](Recipe* r) { r->parallelism.virtual_stages = 2; },
       {"blocks", "schedule"}},
      {"recompute.granularity", [](Recipe* r) { r->recompute.granularity = "full"; }, {"probe", "block"}},
      {"recompute.modules", [](Recipe* r) { r->recompute.modules = {"attention"}; }, {"probe", "block"}},
      {"parallelism.layers_per_stage",
       [](Recipe* r) {
         r->parallelism.layers_per_stage = {1, 2};
       },
       {"blocks"}},
  };
}

TEST_CASE("each searched key is told apart by all that the fold keeps and that depends on it") {
  std::set<std::string> changed;
  for (const Change& change : Changes()) {
    CAPTURE(change.key);
    changed.insert(change.key);
    recipe::Recipe recipe = Selective();
    change.make(&recipe);
    CHECK(Words(Telling(Selective(), recipe)) == Words(change.told_by));
  }
  const std::vector<std::string>& searched = SearchedKeys();
  CHECK(Words(changed) == Words({searched.begin(), searched.end()}));
}

TEST_CASE("what a fold keeps is told apart by parallelism of one world, too") {
  // dp for each other axis: the world stays.
  recipe::Recipe tp = Selective();
  tp.parallelism.dp = 1;
  tp.parallelism.tp = 4;
  recipe::Recipe cp = Selective();
  cp.parallelism.dp = 1;
  cp.parallelism.cp = 4;
  const std::set<std::string> common = {"parameters", "probe", "evaluation", "block", "states", "schedule"};
  std::set<std::string> with_blocks = common;
  with_blocks.insert("blocks");
  CHECK(Words(Telling(Selective(), tp)) == Words(with_blocks));
  CHECK(Words(Telling(Selective(), cp)) == Words(common));
  // More stages for fewer replicas share all probes; one stage is another pipeline.
  recipe::Recipe pp = Selective();
  pp.parallelism.dp = 1;
  pp.parallelism.pp = 4;
  CHECK(Words(Telling(Selective(), pp)) == "blocks schedule states");
  pp.parallelism.dp = 4;
  pp.parallelism.pp = 1;
  CHECK(Words(Telling(Selective(), pp)) == Words(with_blocks));
}

TEST_CASE("modules of what is not selective tell nothing apart") {
  recipe::Recipe full = Selective();
  full.recompute.granularity = "full";
  recipe::Recipe other = full;
  other.recompute.modules = {"attention"};
  CHECK(Words(Telling(full, other)).empty());
}

TEST_CASE("gradients in shards are told apart by a schedule that has none") {
  recipe::Recipe shards = Selective();
  shards.parallelism.zero_stage = 2;
  recipe::Recipe bubble = shards;
  bubble.parallelism.schedule = plan::kZeroBubble;
  CHECK(Words(Telling(shards, bubble)) == "probe schedule states");
}

TEST_CASE("halves, blocks, exchange and what a stage holds are told apart") {
  const recipe::Recipe recipe = Selective();
  CHECK(Differ(ProbeKey::Of(recipe, 1, 3), ProbeKey::Of(recipe, 2, 3)));
  CHECK(Differ(ProbeKey::Of(recipe, 1, 3), ProbeKey::Of(recipe, 1, 2)));
  CHECK(Differ(EvaluationKey::Of(recipe, 1, {3}), EvaluationKey::Of(recipe, 2, {3})));
  CHECK(Differ(EvaluationKey::Of(recipe, 1, {3}), EvaluationKey::Of(recipe, 1, {3, 3})));
  const auto states = [&](const compile::FlatExchange& exchange, const StageShape& shape) {
    return StatesKey::Of(recipe, exchange, shape);
  };
  const StatesKey base = states({}, {.blocks = 3});
  CHECK(!Differ(base, states({}, {.blocks = 3})));
  CHECK(Differ(base, states({}, {.blocks = 4})));
  CHECK(Differ(base, states({}, {.blocks = 3, .embedding = true})));
  CHECK(Differ(base, states({}, {.blocks = 3, .head = true})));
  CHECK(Differ(base, states({.behind = true}, {.blocks = 3})));
  CHECK(Differ(base, states({.at_begin = true}, {.blocks = 3})));
  CHECK(Differ(base, states({.stream = plan::kExchangeStream}, {.blocks = 3})));
  CHECK(Differ(base, states({.pushed = plan::AxisSet::World()}, {.blocks = 3})));
}

}  // namespace
}  // namespace engine::search
