// What is said of a plan's experts, against numbers by hand and against the plan's own.
#include "engine/predict/experts.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "engine/backend/cuda/profile/profile.h"
#include "engine/driver/compile_recipe.h"
#include "engine/driver/plan_document.h"
#include "engine/model/load.h"

namespace engine::predict {
namespace {

recipe::Recipe WithExperts(const std::string& file, const std::vector<std::string>& sets) {
  recipe::LoadOptions options;
  options.sets = sets;
  recipe::LoadResult result = model::Load(std::string(ENGINE_SOURCE_DIR) + "/recipes/" + file, options);
  for (const Diagnostic& diagnostic : result.diagnostics) {
    if (diagnostic.severity == Severity::kError) FAIL(Format(diagnostic));
  }
  return std::move(result.recipe);
}

plan::Plan PlanOf(const recipe::Recipe& recipe) {
  absl::StatusOr<plan::Plan> plan =
      driver::CompileUnverified(recipe, {.profile = backend::cuda::CudaProfile()});
  if (!plan.ok()) FAIL(Message(plan.status()));
  return *std::move(plan);
}

}  // namespace

TEST_CASE("experts: loads by Zipf's law, by hand") {
  ExpertUse use;
  use.experts = 8;
  use.here = 1;
  use.top_k = 2;
  double sum = 0;
  for (int n = 1; n <= 8; ++n) sum += std::pow(n, -0.7);
  CHECK(FullestRank(use, 0.7) == doctest::Approx(8 / sum));
  CHECK(FullestRank(use, 0.0) == doctest::Approx(1));
  CHECK(FullestRankAtWorst(use) == 4);
  use.here = 2;
  CHECK(FullestRank(use, 0.7) == doctest::Approx(4 * (1 + std::pow(2, -0.7)) / sum));
  // All tokens choose the first expert, and half of the rest's weight is not the second's alone.
  double rest = 0;
  for (int n = 2; n <= 8; ++n) rest += std::pow(n, -5.0);
  CHECK(FullestRank(use, 5.0) == doctest::Approx(2 * (1 + std::pow(2, -5.0) / rest)));
  CHECK(FullestRankAtWorst(use) == 4);
  use.here = 8;
  CHECK(FullestRank(use, 0.7) == 1);
  CHECK(FullestRankAtWorst(use) == 1);
}

TEST_CASE("experts: rows, their memory and exchange are the plan's") {
  const std::vector<std::string> small = {"model.dims.L=8", "training.global_batch=64",
                                          "training.micro_batch=2"};
  for (const char* again : {"full", "none"}) {
    CAPTURE(again);
    std::vector<std::string> sets = small;
    sets.push_back(std::string("recompute.granularity=") + again);
    const recipe::Recipe recipe = WithExperts("scale/qwen3-30b-a3b-16gpu.toml", sets);
    const plan::Plan plan = PlanOf(recipe);
    const ExpertUse use = ExpertsOf(plan);
    CHECK(use.experts == 128);
    CHECK(use.here == 16);
    CHECK(use.top_k == 8);
    CHECK(use.ranks == 8);
    // A half of a microbatch is a sample: 4096 tokens of each rank of ep, 8 rows each, an eighth of them here.
    REQUIRE(plan.halves == 2);
    CHECK(use.mean_rows == doctest::Approx(4096 * 8 * 8 / 8).epsilon(0.002));
    CHECK(static_cast<double>(use.row_bound) >= 8 * 4096.0 * 8);
    CHECK(use.rows_of_expert() == doctest::Approx(use.mean_rows / 16));
    REQUIRE(use.stages.size() == 2);
    for (std::size_t s = 0; s < use.stages.size(); ++s) {
      const StageExperts& stage = use.stages[s];
      const plan::MemoryBreakdown& memory = plan.stages[s].memory;
      CHECK(stage.layers == 4);
      CHECK(stage.exchange_bytes > 0);
      CHECK((stage.saved_bytes > 0) == (recipe.recompute.granularity == "none"));
      CHECK(stage.saved_bytes <= memory.activations);
      CHECK(2 * stage.saved_bytes >=
            (stage.saved_bytes > 0 ? memory.activations : 0));  // rows are most of what is saved
      CHECK(stage.other_bytes > 0);
      CHECK(stage.other_bytes <= memory.transients);
    }
    const nlohmann::ordered_json json = driver::PlanDocument(recipe, plan).at("experts");
    CHECK(json.at("of_layer") == 128);
    CHECK(json.at("of_rank") == 16);
    CHECK(json.at("row_bound") == use.row_bound);
    CHECK(json.at("stages").at(1).at("exchange_bytes") == use.stages[1].exchange_bytes);
    const double even = Predict(plan, recipe.cluster).iteration_s;
    CHECK(PredictAtLoad(plan, recipe.cluster, 1) == even);
    const double twice = PredictAtLoad(plan, recipe.cluster, 2);
    CHECK(twice > 1.2 * even);
    CHECK(twice < 2 * even);
    const std::string text = ExpertsText(plan, recipe.cluster, Predict(plan, recipe.cluster));
    CHECK(text.find("experts: 16 of 128 on a rank, 8 for a token") != std::string::npos);
    CHECK(text.find("the fullest rank has 3.44 ×") != std::string::npos);
    CHECK(text.find("8.00 × where all choose one rank's") != std::string::npos);
  }
}

TEST_CASE("experts: those that work in passes are seen too") {
  const auto use = [](const char* budget) {
    return ExpertsOf(PlanOf(WithExperts("scale/qwen3-30b-a3b-16gpu.toml",
                                        {"model.dims.L=8", "training.global_batch=64", budget})));
  };
  const ExpertUse all = use("parallelism.expert_rows=0");
  const ExpertUse passes = use("parallelism.expert_rows=1.25");
  CHECK(passes.experts == 128);
  CHECK(passes.here == 16);
  CHECK(passes.top_k == 8);
  CHECK(passes.row_bound == all.row_bound);
  CHECK(passes.mean_rows == doctest::Approx(all.mean_rows).epsilon(0.002));
  REQUIRE(passes.stages.size() == all.stages.size());
  CHECK(passes.stages[0].layers == all.stages[0].layers);
  CHECK(passes.stages[0].saved_bytes == 0);
  CHECK(passes.stages[0].other_bytes > 0);
  CHECK(passes.stages[0].other_bytes < all.stages[0].other_bytes);
}

TEST_CASE("experts: a rank that has all of them waits for no other, and a dense model has none") {
  const recipe::Recipe recipe =
      WithExperts("scale/qwen3-30b-a3b-16gpu.toml",
                  {"model.dims.L=8", "training.global_batch=64", "parallelism.ep=1", "parallelism.dp=8"});
  const plan::Plan plan = PlanOf(recipe);
  const ExpertUse use = ExpertsOf(plan);
  CHECK(use.here == 128);
  CHECK(use.stages[0].exchange_bytes == 0);
  CHECK(FullestRank(use, kZipf) == 1);
  CHECK(ExpertsText(plan, recipe.cluster, Predict(plan, recipe.cluster)).find("no load makes others wait") !=
        std::string::npos);
  const recipe::Recipe dense = WithExperts("gpt2-124m-1gpu.toml", {});
  const plan::Plan other = PlanOf(dense);
  CHECK(ExpertsText(other, dense.cluster, {}).empty());
  CHECK(PredictAtLoad(other, dense.cluster, 2) ==
        Predict(other, dense.cluster).iteration_s);  // nothing has rows
}

}  // namespace engine::predict
