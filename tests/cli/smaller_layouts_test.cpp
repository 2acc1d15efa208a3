// Layouts for hosts that are left.
#include "engine/cli/smaller_layouts.h"

#include <doctest/doctest.h>

#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace engine::cli {
namespace {

using launch::AttemptSize;
using Settings = std::vector<std::string>;

AttemptSize Await(SmallerLayouts& layouts, std::int64_t hosts) {
  for (;;) {
    if (const std::optional<AttemptSize> found = layouts.For(hosts)) return *found;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

TEST_CASE("smaller layouts: the most data-parallel ranks that work, on as few hosts as share them equally") {
  recipe::Recipe recipe;
  recipe.parallelism.dp = 16;
  recipe.parallelism.tp = 2;
  std::vector<Settings> tried;
  std::vector<std::string> working = {"parallelism.dp=8"};
  SmallerLayouts layouts(recipe, 4, [&](const Settings& sets) {
    tried.push_back(sets);
    return sets.front() == working.front();
  });
  // Eight ranks a host: three have room for dp 12, and two are enough for the 16 ranks of dp 8.
  CHECK(Await(layouts, 3) == AttemptSize{.nodes = 2, .dp = 8});
  REQUIRE(tried.size() == 3);  // 11 and 10 share no hosts equally
  CHECK(tried.front() == Settings{"parallelism.dp=12"});
  CHECK(tried.back() == Settings{"parallelism.dp=8"});
  CHECK(Await(layouts, 3).dp == 8);
  CHECK(tried.size() == 3);
  working = {"parallelism.dp=11"};
  SmallerLayouts odd(recipe, 4, [&](const Settings& sets) { return sets.front() == working.front(); });
  CHECK(Await(odd, 3) == AttemptSize{});  // 22 ranks are no equal share of three hosts
}

TEST_CASE(
    "smaller layouts: a copy of the model that needs several hosts; none that works; nodes of the cluster") {
  recipe::Recipe recipe;
  recipe.parallelism.dp = 3;
  recipe.parallelism.pp = 4;
  recipe.cluster.nodes = 6;
  SmallerLayouts layouts(recipe, 6, [](const Settings& sets) {
    return sets == Settings{"parallelism.dp=2", "cluster.nodes=4"};
  });
  CHECK(Await(layouts, 5) == AttemptSize{.nodes = 4, .dp = 2});
  CHECK(Await(layouts, 3) == AttemptSize{});
  CHECK(Await(layouts, 1) == AttemptSize{});
  CHECK(SettingsOf({.nodes = 6, .dp = 3}, recipe).empty());
}

}  // namespace engine::cli
