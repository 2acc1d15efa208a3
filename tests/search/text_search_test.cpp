// The search for layouts of models whose steps are text.
#include <doctest/doctest.h>

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/backend/cuda/profile/profile.h"
#include "engine/driver/compile_recipe.h"
#include "engine/model/layers.h"
#include "engine/model/load.h"
#include "engine/predict/predict.h"
#include "engine/recipe/document.h"
#include "engine/recipe/expand.h"
#include "engine/recipe/load.h"
#include "engine/recipe/parse.h"
#include "engine/search/report.h"
#include "engine/search/search.h"
#include "engine/search/space.h"

namespace engine::search {
namespace {

recipe::Recipe Decoder() {
  recipe::LoadOptions options;
  options.sets = {"model.layers=4", "training.global_batch=16", "training.micro_batch=4",
                  "cluster.devices_per_node=0"};
  recipe::LoadResult result =
      recipe::Load(std::string(ENGINE_SOURCE_DIR) + "/recipes/gpt2-124m-1gpu.toml", options);
  REQUIRE(result.ok());
  return std::move(result.recipe);
}

// The same model as a text.
recipe::Recipe AsText(const std::string& model) {
  std::vector<Diagnostic> mistakes;
  const auto document = recipe::ParseToml(std::make_shared<const recipe::Source>("text", model), &mistakes);
  REQUIRE(document.has_value());
  recipe::Settings settings =
      recipe::ParseSettings(*document, recipe::Provenance::Origin::kFile, nullptr, &mistakes);
  REQUIRE(mistakes.empty());
  recipe::Recipe text = Decoder();
  text.model.family = recipe::kTextFamily;
  text.text = std::make_shared<const recipe::Node>(std::move(settings.text));
  return text;
}

void Replace(const std::string& what, const std::string& with, std::string* text) {
  const std::size_t at = text->find(what);
  REQUIRE(at != std::string::npos);
  text->replace(at, what.size(), with);
}

SearchResult Searched(const recipe::Recipe& recipe) {
  SearchOptions options;
  options.world = 2;
  options.fixed = {"training.micro_batch", "recompute.granularity", "parallelism.zero_stage"};
  absl::StatusOr<SearchResult> result = Search(recipe, {.profile = backend::cuda::CudaProfile()}, options);
  if (!result.ok()) FAIL(Message(result.status()));
  REQUIRE(!result->best.empty());
  return *std::move(result);
}

}  // namespace

TEST_CASE("search: a text of equal layers is the decoder that expands to it") {
  const SearchResult decoder = Searched(Decoder());
  const recipe::Recipe text = AsText(recipe::Expand(Decoder()));
  CHECK(model::HasEqualLayers(text));
  const SearchResult same = Searched(text);
  CHECK(same.best[0].layout.ToString() == decoder.best[0].layout.ToString());
  CHECK(same.best[0].time.iteration_s == decoder.best[0].time.iteration_s);
  CHECK(same.probes == decoder.probes);
}

// Layers that may differ are compiled whole. Where they turn out to be equal, the estimates of few layers give the same.
TEST_CASE("search: layers that take values in turn are compiled whole, to the same layouts") {
  std::string expanded = recipe::Expand(Decoder());
  Replace("do = \"attention\", as = \"core\"", "do = \"attention\", as = \"core\", window = \"$window\"",
          &expanded);
  Replace("\"mlp as mlp\"]", "\"mlp as mlp\"], cycle = { window = [0] }", &expanded);
  const recipe::Recipe text = AsText(expanded);
  CHECK_FALSE(model::HasEqualLayers(text));
  const SearchResult decoder = Searched(Decoder());
  const SearchResult whole = Searched(text);
  REQUIRE(whole.best.size() == decoder.best.size());
  for (std::size_t i = 0; i < whole.best.size(); ++i) {
    CHECK(whole.best[i].layout.ToString() == decoder.best[i].layout.ToString());
    CHECK(whole.best[i].time.iteration_s == decoder.best[i].time.iteration_s);
    CHECK(whole.best[i].arena_bytes == decoder.best[i].arena_bytes);
  }
  CHECK(whole.probes >= whole.estimated);
}

TEST_CASE("search: experts are shared by ranks of ep, or by those of tp, or whole") {
  recipe::LoadOptions load;
  load.sets = {"model.dims.L=4", "parallelism.virtual_stages=1", "training.global_batch=32",
               "training.micro_batch=1", "data.sequence_length=1024"};
  const recipe::LoadResult loaded =
      model::Load(std::string(ENGINE_SOURCE_DIR) + "/recipes/scale/qwen3-30b-a3b-16gpu.toml", load);
  for (const Diagnostic& diagnostic : loaded.diagnostics) {
    if (diagnostic.severity == Severity::kError) FAIL(Format(diagnostic));
  }
  const recipe::Recipe& recipe = loaded.recipe;
  REQUIRE(recipe.model.experts == 128);
  const SearchSpace space(recipe, 8, {"parallelism.cp", "parallelism.pp", "parallelism.virtual_stages"});
  std::set<std::string> groups;
  for (const SearchSpace::Group& g : space.Groups())
    groups.insert(fmt::format("{}·{}{}{}", g.tp, g.ep, g.sequence_parallel ? " sp" : "",
                              g.expert_tp == 1 ? " whole" : ""));
  for (const char* group : {"1·1", "1·8", "2·2", "2·4 sp", "2·4 sp whole", "4·2 sp whole"})
    CHECK(groups.contains(group));
  for (const char* group : {"1·3", "2·8", "2·4 whole", "1·4 whole", "1·2 sp"}) CHECK(!groups.contains(group));
  SearchOptions options;
  options.world = 8;
  options.fixed = {"parallelism.cp",
                   "parallelism.pp",
                   "parallelism.virtual_stages",
                   "parallelism.zero_stage",
                   "training.micro_batch",
                   "recompute.granularity",
                   "parallelism.sequence_parallel"};
  recipe::Recipe one = recipe;
  one.parallelism.pp = 1;
  one.parallelism.virtual_stages = 1;
  one.parallelism.schedule = "auto";
  absl::StatusOr<SearchResult> result = Search(one, {.profile = backend::cuda::CudaProfile()}, options);
  if (!result.ok()) FAIL(Message(result.status()));
  REQUIRE(!result->best.empty());
  // The best of those that are compiled one by one.
  double best = 1e9;
  std::int64_t lawful = 0;
  for (const std::int64_t tp : {1, 2, 4}) {
    for (std::int64_t ep = 1; ep * tp <= 8; ep *= 2) {
      recipe::Recipe layout = one;
      layout.parallelism.tp = tp;
      layout.parallelism.ep = ep;
      layout.parallelism.dp = 8 / tp / ep;
      const absl::StatusOr<plan::Plan> plan =
          driver::CompileRecipe(layout, {.profile = backend::cuda::CudaProfile()});
      ++lawful;
      if (plan.ok()) best = std::min(best, predict::Predict(*plan, layout.cluster).iteration_s);
    }
  }
  CHECK(result->layouts == lawful);
  CHECK(result->best[0].time.iteration_s == best);
  CHECK(ToText(*result, one).find("   cp   ep   etp   sp") != std::string::npos);
  CHECK(ToJson(*result, one)["best"][0]["ep"] == result->best[0].layout.ep);
}

}  // namespace engine::search
