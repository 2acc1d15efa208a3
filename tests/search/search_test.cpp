#include "engine/search/search.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <string>
#include <vector>

#include "engine/backend/cuda/profile/profile.h"
#include "engine/driver/compile_recipe.h"
#include "engine/recipe/load.h"
#include "engine/search/report.h"

namespace engine::search {
namespace {

compile::CompileOptions OnGpus() { return {.profile = backend::cuda::CudaProfile()}; }

// A file of recipes/, with sets.
recipe::Recipe Loaded(const std::string& file, const std::vector<std::string>& sets = {}) {
  recipe::LoadOptions options;
  options.sets = sets;
  recipe::LoadResult result = recipe::Load(std::string(ENGINE_SOURCE_DIR) + "/recipes/" + file, options);
  for (const Diagnostic& diagnostic : result.diagnostics) {
    if (diagnostic.severity == Severity::kError) FAIL(Format(diagnostic));
  }
  return std::move(result.recipe);
}

SearchResult Searched(const recipe::Recipe& recipe, const SearchOptions& options) {
  absl::StatusOr<SearchResult> result = Search(recipe, OnGpus(), options);
  if (!result.ok()) FAIL(Message(result.status()));
  return *std::move(result);
}

const std::vector<std::string> kAxes = {"parallelism.dp", "parallelism.tp", "parallelism.pp",
                                        "parallelism.cp"};

std::vector<std::string> And(std::vector<std::string> keys, const std::vector<std::string>& more) {
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

TEST_CASE("the layout that is found is the best of those that are compiled one by one") {
  const recipe::Recipe recipe = Loaded("scale/llama-7b-8gpu.toml");
  const SearchOptions options{.fixed = {"parallelism.cp", "parallelism.virtual_stages",
                                        "parallelism.schedule", "parallelism.zero_stage",
                                        "recompute.granularity", "training.micro_batch",
                                        "parallelism.sequence_parallel"}};
  const SearchResult result = Searched(recipe, options);
  double best = 1e9;
  std::int64_t lawful = 0;
  for (std::int64_t tp : {2, 4, 8}) {  // sequence parallelism is kept, which tp 1 has not
    for (std::int64_t pp : {1, 2, 4}) {
      if (tp * pp > 8) continue;
      recipe::Recipe one = recipe;
      one.parallelism.tp = tp;
      one.parallelism.pp = pp;
      one.parallelism.dp = 8 / tp / pp;
      const absl::StatusOr<plan::Plan> plan = driver::CompileRecipe(one, OnGpus());
      ++lawful;
      if (!plan.ok()) continue;  // too large
      best = std::min(best, predict::Predict(*plan, one.cluster).iteration_s);
    }
  }
  CHECK(result.layouts == lawful);
  CHECK(result.looked_at == lawful);
  REQUIRE(!result.best.empty());
  CHECK(result.best.front().time.iteration_s == best);
}

// Whatever the layout, so that none is found, and the reason is what the check of a recipe says.
TEST_CASE("attention without a fast kernel is in no layout that is found, unless the recipe asks for it") {
  const std::vector<std::string> odd = {"model.attention.head_dim=60"};
  const SearchOptions options{.fixed = And(kAxes, {"training.micro_batch", "parallelism.virtual_stages",
                                                   "parallelism.schedule", "recompute.granularity"})};
  const absl::StatusOr<SearchResult> none =
      Search(Loaded("scale/llama-7b-8gpu.toml", odd), OnGpus(), options);
  REQUIRE(!none.ok());
  const std::string why = Message(none.status());
  CHECK(why.find(": error: attention with heads of 60 elements has no fast kernel on h100: ") !=
        std::string::npos);
  CHECK(why.find("precision.attention = \"reference\"") != std::string::npos);
  CHECK(!Searched(Loaded("scale/llama-7b-8gpu.toml", And(odd, {"precision.attention=reference"})), options)
             .best.empty());
}

TEST_CASE("what is fixed stays, and each neighbour says why it loses") {
  const recipe::Recipe recipe = Loaded("scale/llama-70b-64gpu.toml");
  const SearchResult result = Searched(recipe, {.fixed = And(kAxes, {"training.micro_batch"})});
  REQUIRE(!result.best.empty());
  for (const Found& found : result.best) {
    CHECK(found.layout.tp == 8);
    CHECK(found.layout.pp == 2);
    CHECK(found.layout.dp == 4);
    CHECK(found.layout.micro_batch == recipe.training.micro_batch);
    CHECK(static_cast<double>(found.arena_bytes + recipe.cluster.reserved_bytes) <=
          0.95 * static_cast<double>(recipe.cluster.memory_bytes));
    CHECK(found.time.iteration_s >= result.best.front().time.iteration_s);
  }
  bool without = false;
  bool full = false;
  for (const Neighbour& neighbour : result.neighbours) {
    CHECK(!neighbour.why.empty());
    without = without ||
              (neighbour.change == "zero_stage 1 to 0" && neighbour.why.starts_with("over the memory by ") &&
               neighbour.why.find("optimizer +") != std::string::npos);
    full =
        full || (neighbour.change.ends_with("to full") && neighbour.why.find("% FLOPs") != std::string::npos);
  }
  CHECK(without);
  CHECK(full);
}

TEST_CASE("tp stays in a node because links between nodes are slow") {
  const std::vector<std::string> small = {"model.layers=8", "training.global_batch=64",
                                          "training.micro_batch=1"};
  const SearchOptions options{
      .world = 16,
      .fixed = {"parallelism.cp", "parallelism.virtual_stages", "parallelism.schedule",
                "parallelism.zero_stage", "parallelism.dp", "training.micro_batch"}};
  std::vector<std::string> slow = small;
  slow.insert(slow.end(), {"parallelism.dp=1", "parallelism.tp=1", "parallelism.sequence_parallel=false",
                           "parallelism.zero_stage=0", "cluster.inter_node_bandwidth=25e9"});
  const SearchResult apart = Searched(Loaded("scale/llama-7b-8gpu.toml", slow), options);
  REQUIRE(!apart.best.empty());
  CHECK(apart.best.front().layout.tp <= 8);
  CHECK(apart.best.front().layout.pp >= 2);
  bool said = false;
  for (const Neighbour& neighbour : apart.neighbours) {
    said = said || (neighbour.found.layout.tp > apart.best.front().layout.tp &&
                    neighbour.why.find("exposed exchange") != std::string::npos);
  }
  CHECK(said);
}

TEST_CASE("the least memory is another objective") {
  const recipe::Recipe recipe = Loaded("scale/llama-7b-8gpu.toml");
  SearchOptions options{.fixed = And(kAxes, {"parallelism.virtual_stages"})};
  const SearchResult fast = Searched(recipe, options);
  options.objective = SearchOptions::Objective::kMemory;
  const SearchResult small = Searched(recipe, options);
  REQUIRE(!fast.best.empty());
  REQUIRE(!small.best.empty());
  CHECK(small.best.front().arena_bytes < fast.best.front().arena_bytes);
  CHECK(small.best.front().time.iteration_s > fast.best.front().time.iteration_s);
  CHECK(small.best.front().layout.granularity == "full");
}

TEST_CASE("rows name the schedule as the plan does, and show no MFU of another machine") {
  recipe::Recipe recipe;
  recipe.cluster.memory_bytes = 80'000'000'000;  // else its column says "–"
  SearchResult result;
  result.world = 8;
  Found found;
  found.layout.pp = 4;
  found.layout.virtual_stages = 3;
  found.time.iteration_s = 1;
  found.time.mfu = 0.5;
  result.best = {found};
  const auto row = [&] {
    const std::string text = ToText(result, recipe);
    const size_t header = text.find("\n  dp ");
    REQUIRE(header != std::string::npos);
    const size_t begin = text.find('\n', header + 1) + 1;
    return text.substr(begin, text.find('\n', begin) - begin);
  };
  CHECK(row().find(" interleaved ") != std::string::npos);
  CHECK(row().find(" 50.0 ") != std::string::npos);
  result.best[0].time.missing = {"matmul_flops"};
  CHECK(row().find(" 50.0 ") == std::string::npos);
  CHECK(row().find(" – ") != std::string::npos);
  result.best[0].layout.virtual_stages = 1;
  CHECK(row().find(" 1f1b ") != std::string::npos);
  result.best[0].layout.zero_bubble = true;
  CHECK(row().find(" zero_bubble ") != std::string::npos);
  result.best[0].layout.layers_per_stage = {3, 2};
  CHECK(ToText(result, recipe).find(", layers 3+2") != std::string::npos);
  result.best[0].time = {};
  result.best[0].time.iteration_s = 1;  // the device's peak is not known
  CHECK(row().find(" – ") != std::string::npos);
}

TEST_CASE("where nothing fits the layout that needs least is named") {
  const recipe::Recipe recipe = Loaded("scale/llama-70b-64gpu.toml", {"cluster.memory_bytes=\"10 GB\""});
  const SearchResult result = Searched(recipe, {.fixed = kAxes});
  CHECK(result.best.empty());
  CHECK(result.smallest.arena_bytes > 10'000'000'000);
  CHECK(ToText(result, recipe).find("none fits. dp 4 tp 8 pp 2") != std::string::npos);
  CHECK(result.smallest.layout.granularity == "full");
  CHECK(result.smallest.layout.zero_stage == 3);
}

// A pipeline of which the first stage is much longer than the others is slower; but it is the recipe's own.
TEST_CASE("what the recipe says itself is among what is searched") {
  const std::vector<std::string> sets = {"parallelism.pp=2", "parallelism.dp=2",
                                         "parallelism.layers_per_stage=[20, 12]", "training.global_batch=192",
                                         "training.micro_batch=3"};
  const recipe::Recipe recipe = Loaded("scale/llama-7b-8gpu.toml", sets);
  const SearchSpace space(recipe, 8, {});
  const SearchSpace fixed(recipe, 8, {"training.micro_batch", "parallelism.layers_per_stage"});
  const SearchSpace::Group group{.tp = 2};
  const std::vector<Layout> all = space.Layouts(group);
  size_t own = 0;
  for (const Layout& layout : fixed.Layouts(group)) {
    CHECK(layout.micro_batch == 3);
    CHECK(layout.layers_per_stage == recipe.parallelism.layers_per_stage);
    CHECK(std::find(all.begin(), all.end(), layout) != all.end());
    ++own;
  }
  CHECK(own > 0);
}

TEST_CASE("a search that is stopped keeps what it has, and says how far it was") {
  const recipe::Recipe recipe = Loaded("scale/llama-7b-8gpu.toml");
  std::atomic<int> asked = 0;
  SearchOptions options{.fixed = {"parallelism.cp", "parallelism.pp", "parallelism.tp"}};
  options.stopped = [&] { return ++asked > 10; };
  const SearchResult result = Searched(recipe, options);
  CHECK(result.interrupted);
  CHECK(result.looked_at > 0);
  CHECK(result.looked_at < result.layouts);
  CHECK(result.best.size() == 1);
  CHECK(result.neighbours.empty());
  CHECK(ToText(result, recipe).find(fmt::format("interrupted after {} of them", result.looked_at)) !=
        std::string::npos);
}

TEST_CASE("threads change nothing of what is found") {
  const recipe::Recipe recipe = Loaded("scale/llama-7b-8gpu.toml", {"model.layers=8"});
  const SearchOptions one{.fixed = {"parallelism.pp", "parallelism.sequence_parallel"}};
  SearchOptions four = one;
  four.threads = 4;
  const SearchResult a = Searched(recipe, one);
  CHECK(ToText(a, recipe) == ToText(Searched(recipe, four), recipe));
}

#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// How long a plan takes to compile, in seconds of this thread.
double CompileSeconds(const recipe::Recipe& recipe) {
  constexpr int kTimes = 5;
  const std::clock_t begin = std::clock();
  for (int i = 0; i < kTimes; ++i) REQUIRE(driver::CompileUnverified(recipe, OnGpus()).ok());
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC / kTimes;
}

// Of the whole search of a 70B model the rate is higher, as more layouts share probes. That it is some
// thousand a second and core is in the message; a machine that is slow today compiles plans more slowly, too.
TEST_CASE("a layout of a 70B model is looked at in a small part of the time that its plan takes") {
  const recipe::Recipe recipe = Loaded("scale/llama-70b-64gpu.toml");
  const double before = CompileSeconds(recipe);
  const SearchResult result =
      Searched(recipe, {.fixed = {"parallelism.tp", "parallelism.cp"}, .finalists = 1});
  const double compile = (before + CompileSeconds(recipe)) / 2;
  const double fold = result.seconds / static_cast<double>(result.looked_at);
  MESSAGE(fmt::format("{} layouts, {:.0f} a second: {:.0f} in the time of a plan", result.looked_at, 1 / fold,
                      compile / fold));
  CHECK(compile / fold > 30);
}
#endif

}  // namespace
}  // namespace engine::search
