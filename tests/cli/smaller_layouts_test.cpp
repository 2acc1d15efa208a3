// Layouts for hosts that are left.
#include "engine/cli/smaller_layouts.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace engine::cli {
namespace {

using launch::AttemptSize;
using Settings = std::vector<std::string>;

AttemptSize Await(SmallerLayouts& layouts, std::int64_t hosts, std::int64_t least = 1) {
  for (;;) {
    if (const std::optional<AttemptSize> found = layouts.For(hosts, least)) return *found;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

recipe::Recipe WithBatch(std::int64_t samples) {
  recipe::Recipe recipe;
  recipe.training.global_batch = samples;
  recipe.training.micro_batch = 1;
  return recipe;
}

}  // namespace

TEST_CASE("smaller layouts: with samples that are empty, where that saves microbatches") {
  std::vector<Settings> tried;
  const auto first_of = [&](std::int64_t batch, std::int64_t dp, std::int64_t hosts) {
    recipe::Recipe recipe = WithBatch(batch);
    recipe.parallelism.dp = dp;
    SmallerLayouts layouts(recipe, dp, [&](const Settings& sets) {
      tried.push_back(sets);
      return true;
    });
    return Await(layouts, hosts);
  };
  // 512 samples are nine microbatches of 63 ranks, where the next divisor, 32 ranks, has sixteen.
  CHECK(first_of(512, 64, 63) == AttemptSize{.nodes = 63, .dp = 63});
  REQUIRE(tried.size() == 1);
  CHECK(tried[0] == Settings{"parallelism.dp=63", "training.pad_batch=true"});
  // Of eight samples seven ranks have two microbatches, as four have.
  CHECK(first_of(8, 8, 7) == AttemptSize{.nodes = 4, .dp = 4});
  CHECK(tried.back() == Settings{"parallelism.dp=4"});
  // Interleaved, microbatches come in groups of pp: 31 ranks, and 22 as well, have 192 of 4,096, and 16 have 256.
  recipe::Recipe interleaved = WithBatch(4096);
  interleaved.parallelism.dp = 32;
  interleaved.parallelism.pp = 64;
  interleaved.parallelism.virtual_stages = 2;
  tried.clear();
  SmallerLayouts in_groups(interleaved, 32, [&](const Settings& sets) {
    tried.push_back(sets);
    return sets.front() == "parallelism.dp=16";
  });
  CHECK(Await(in_groups, 31).dp == 16);
  REQUIRE(tried.size() > 2);
  CHECK(tried[0] == Settings{"parallelism.dp=31", "training.pad_batch=true"});
  CHECK(tried.back() == Settings{"parallelism.dp=16"});
  // Each size of a batch that grows counts.
  recipe::Recipe grows = WithBatch(24);
  grows.parallelism.dp = 4;
  CHECK(SettingsOf({.nodes = 3, .dp = 3}, grows) == Settings{"parallelism.dp=3"});
  grows.training.rampup = {.start = 8, .increment = 8, .samples = 100};
  CHECK(SettingsOf({.nodes = 3, .dp = 3}, grows) == Settings{"parallelism.dp=3", "training.pad_batch=true"});
}

TEST_CASE("smaller layouts: the most data-parallel ranks that work, on as few hosts as share them equally") {
  recipe::Recipe recipe = WithBatch(48);
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
  REQUIRE(tried.size() == 2);  // 11 and 10 share no hosts equally, and 9 takes as many microbatches as 8
  CHECK(tried.front() == Settings{"parallelism.dp=12"});
  CHECK(tried.back() == Settings{"parallelism.dp=8"});
  CHECK(Await(layouts, 3).dp == 8);
  CHECK(tried.size() == 2);
  working = {"parallelism.dp=11"};
  SmallerLayouts odd(recipe, 4, [&](const Settings& sets) { return sets.front() == working.front(); });
  CHECK(Await(odd, 3) == AttemptSize{});  // 22 ranks are no equal share of three hosts
}

TEST_CASE(
    "smaller layouts: a copy of the model that needs several hosts; none that works; nodes of the cluster") {
  recipe::Recipe recipe = WithBatch(12);
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

TEST_CASE("smaller layouts: tensor-parallel groups stay within hosts where a layout allows it") {
  recipe::Recipe recipe = WithBatch(40);
  recipe.parallelism.dp = 8;
  recipe.parallelism.tp = 4;
  std::vector<std::string> working = {"parallelism.dp=5", "parallelism.dp=4"};
  SmallerLayouts layouts(recipe, 4, [&](const Settings& sets) {
    return std::find(working.begin(), working.end(), sets.front()) != working.end();
  });
  // Eight ranks a host. The 20 ranks of dp 5 are five each on four hosts; the 16 of dp 4 are two whole groups on two.
  CHECK(Await(layouts, 4) == AttemptSize{.nodes = 2, .dp = 4});
  CHECK(Await(layouts, 5) == AttemptSize{.nodes = 5, .dp = 5});
  working = {"parallelism.dp=5"};
  CHECK(Await(layouts, 4, 2) == AttemptSize{.nodes = 4, .dp = 5});
}

TEST_CASE("smaller layouts: a layout is spread over as many hosts as it has to have, or is not taken") {
  recipe::Recipe recipe = WithBatch(48);
  recipe.parallelism.dp = 16;
  SmallerLayouts layouts(recipe, 8, [](const Settings& sets) { return sets.front() == "parallelism.dp=6"; });
  CHECK(Await(layouts, 7) == AttemptSize{.nodes = 3, .dp = 6});
  CHECK(Await(layouts, 7, 4) == AttemptSize{.nodes = 6, .dp = 6});
  CHECK(Await(layouts, 7, 7) == AttemptSize{});
}

}  // namespace engine::cli
