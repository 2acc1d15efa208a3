// Models with experts train alike in every layout, those with ranks of ep among them.
#include <cmath>
#include <string>
#include <vector>

#include "engine/compile/policy.h"
#include "engine/recipe/validate.h"
#include "tests/train/text_testing.h"

namespace engine::train::testing {
namespace {

// A decoder with 24 experts in each layer, of which a token goes to two.
constexpr const char* kExpertsText = R"(
[model]
dims = { D = 32, L = 4, H = 4, K = 2, E = 8, F = 8, X = 24, V = 300 }
inputs = { tokens = "i32[B,S]", labels = "i32[B,S]", positions = "i32[B,S]" }
rotary.rope = { dim = "E", base = 1e4 }
vocab_multiple = 16
init_std = 0.1
main = [
  { do = "embedding", as = "embedding.tokens", of = "tokens", rows = "V", width = "D" },
  { do = "stack", as = "layers", repeat = "L", layer = ["attention as attention", "moe as mlp"] },
  { do = "rms_norm", as = "final_norm" },
  { do = "linear", as = "head", out = ["V"] },
  { do = "cross_entropy", as = "loss" },
]
[block.attention]
steps = [
  { do = "rms_norm", as = "norm", of = "x" },
  { do = "linear", as = "qkv", out = ["K", "H/K+2", "E"] },
  { do = "qkv_split", as = "split", to = ["q", "k", "v"], rotary = "rope" },
  { do = "attention", as = "core", of = ["q", "k", "v"] },
  { do = "linear", as = "proj", out = ["D"], init = "branch" },
  { do = "residual", as = "residual", of = ["x", "proj"], to = "x" },
]
[block.moe]
steps = [
  { do = "rms_norm", as = "norm", of = "x" },
  { do = "route", as = "router", experts = "X", top_k = 2, aux_loss = 0.02, z_loss = 0.01, bias_rate = 0.01, to = ["choice", "weight"] },
  { do = "experts", as = "experts", of = ["norm", "choice", "weight"], hidden = "F" },
  { do = "residual", as = "residual", of = ["x", "experts"], to = "x" },
]
)";

recipe::Recipe Experts(const std::string& sets) {
  std::vector<std::string> all = SetsOf(sets);
  all.emplace_back("training.global_batch=24");
  return Loaded(
      model::LoadText(std::string(kExpertsText) + kCommon + kAdamW, "test.toml", {.sets = all, .root = ""}));
}

// The same with experts that take at most half of what they would be sent on the average.
recipe::Recipe WithCapacity(const std::string& sets, const std::string& drop) {
  std::string text = kExpertsText;
  const std::string before = R"(hidden = "F")";
  text.replace(text.find(before), before.size(), before + ", capacity = 0.5, drop = \"" + drop + "\"");
  std::vector<std::string> all = SetsOf(sets);
  all.emplace_back("training.global_batch=24");
  return Loaded(model::LoadText(text + kCommon + kAdamW, "test.toml", {.sets = all, .root = ""}));
}
recipe::Recipe DropByPosition(const std::string& sets) { return WithCapacity(sets, "position"); }
recipe::Recipe DropByWeight(const std::string& sets) { return WithCapacity(sets, "weight"); }

// The same with other attributes of the router in the place of its losses and bias, and of the experts.
struct Routed {
  std::string router, experts;
  recipe::Recipe operator()(const std::string& sets) const {
    std::string text = kExpertsText;
    const std::string losses = "aux_loss = 0.02, z_loss = 0.01, bias_rate = 0.01";
    text.replace(text.find(losses), losses.size(), router);
    const std::string hidden = R"(hidden = "F")";
    text.replace(text.find(hidden), hidden.size(), hidden + experts);
    std::vector<std::string> all = SetsOf(sets);
    all.emplace_back("training.global_batch=24");
    return Loaded(model::LoadText(text + kCommon + kAdamW, "test.toml", {.sets = all, .root = ""}));
  }
};

}  // namespace

TEST_CASE("noise, and choices by sinkhorn over each sample, are the same in every layout") {
  const Routed sinkhorn = {"select = \"sinkhorn\", rounds = 8, jitter = 0.2, normalize = false", ""};
  CheckTextLayouts(
      sinkhorn,
      {"micro_batch=4", "dp=2 micro_batch=2", "ep=2 micro_batch=2", "ep=8 micro_batch=1",
       "cp=2 micro_batch=2", "tp=2 sequence_parallel=true micro_batch=2",
       "tp=2 sequence_parallel=true expert_tp=1 micro_batch=2", "pp=2 micro_batch=2",
       "ep=2 cp=2 overlap=on micro_batch=4", "ep=2 tp=2 sequence_parallel=true overlap=on micro_batch=2",
       "ep=2 micro_batch=2 granularity=full",
       "micro_batch=2 granularity=selective modules=[\"norm\",\"activation\"]"});
  // The noise is there: without it the same weights give another loss.
  const Routed still = {"select = \"sinkhorn\", rounds = 8, normalize = false", ""};
  CHECK(RunText(still, "micro_batch=2", 1).losses[0] != RunText(sinkhorn, "micro_batch=2", 1).losses[0]);
  const Routed by_score = {"normalize = false", ""};
  CHECK(RunText(still, "micro_batch=2", 1).losses[0] != RunText(by_score, "micro_batch=2", 1).losses[0]);
}

TEST_CASE("losses and capacities of groups of samples are the same in every layout") {
  const Routed grouped = {
      "score = \"sqrtsoftplus\", scale = 1.5, aux_loss = 0.5, aux_samples = 2, jitter = 0.1",
      ", capacity = 0.7, capacity_samples = 2, drop = \"position\""};
  CheckTextLayouts(
      grouped,
      {"micro_batch=4", "dp=2 micro_batch=2", "dp=3 micro_batch=4", "ep=2 micro_batch=2",
       "ep=4 micro_batch=2", "cp=2 micro_batch=2", "tp=2 micro_batch=2",
       "tp=2 sequence_parallel=true micro_batch=2", "tp=2 sequence_parallel=true expert_tp=1 micro_batch=2",
       "pp=2 micro_batch=2", "ep=2 cp=2 overlap=on micro_batch=4",
       "ep=2 tp=2 sequence_parallel=true overlap=auto micro_batch=2", "ep=2 micro_batch=2 granularity=full"});
  const Routed single = {"score = \"sqrtsoftplus\", scale = 1.5, aux_loss = 0.5, jitter = 0.1",
                         ", capacity = 0.7, drop = \"position\""};
  CHECK(RunText(single, "micro_batch=2", 1).losses[0] != RunText(grouped, "micro_batch=2", 1).losses[0]);
}

TEST_CASE("a rank, and each half of its microbatch, has whole groups of samples") {
  const Routed grouped = {"aux_loss = 0.5, aux_samples = 2", ", capacity = 1.0, capacity_samples = 4"};
  recipe::Recipe recipe = grouped("ep=2 overlap=on micro_batch=4");
  CHECK(recipe.model.sample_group == 4);
  CHECK(compile::Halves(recipe, {}) == 1);
  CHECK(compile::Halves(grouped("ep=2 overlap=on micro_batch=12"), {}) == 1);
  CHECK(compile::Halves(Routed{"aux_loss = 0.5, aux_samples = 2", ""}("ep=2 overlap=on micro_batch=4"), {}) ==
        2);
  CHECK(recipe::Validate(recipe).empty());
  recipe.training.micro_batch = 6;
  const std::vector<Diagnostic> wrong = recipe::Validate(recipe);
  REQUIRE(wrong.size() == 1);
  CHECK(wrong[0].message.starts_with("micro_batch 6 is not a multiple of the 4 samples"));
}

TEST_CASE("what Megatron-LM counts over a rank or over all ranks is what groups of as many samples give") {
  const std::string position = ", capacity = 0.7, drop = \"position\"";
  const Routed of_rank = {"microbatch_aux_loss = 0.5", position + ", capacity_of = \"rank\""};
  const Routed of_two = {"aux_loss = 0.5, aux_samples = 2", position + ", capacity_samples = 2"};
  const Trained two = RunText(of_two, "micro_batch=2", 2);
  CheckEqual(two, RunText(of_rank, "micro_batch=2", 2));
  CheckEqual(two, RunText(of_rank, "dp=2 ep=2 micro_batch=2", 2));
  CheckEqual(two, RunText(of_rank, "cp=2 tp=2 sequence_parallel=true micro_batch=2", 2));
  CHECK(RunText(of_rank, "micro_batch=4", 1).losses[0] != two.losses[0]);

  const Routed global = {"global_aux_loss = 0.5", ""};
  const Routed of_all = {"aux_loss = 0.5, aux_samples = 24", ""};
  // One microbatch of all samples.
  const Trained whole = RunText(of_all, "micro_batch=24", 2);
  CheckEqual(whole, RunText(global, "micro_batch=24", 2));
  CheckEqual(whole, RunText(global, "dp=2 ep=2 cp=2 micro_batch=6", 2));
  // Microbatches of four samples, however many ranks share them.
  const Trained running = RunText(global, "micro_batch=4", 2);
  CHECK(running.losses[0] != whole.losses[0]);
  CheckEqual(running, RunText(global, "dp=2 micro_batch=2", 2));
  CheckEqual(running, RunText(global, "ep=2 tp=2 sequence_parallel=true micro_batch=2", 2));
  // Each half of a microbatch counts as one.
  CHECK(compile::Halves(global("ep=2 overlap=on micro_batch=4"), {}) == 2);
  CheckEqual(running, RunText(global, "ep=2 overlap=on micro_batch=4", 2));
  CheckEqual(running, RunText(global, "pp=2 ep=2 micro_batch=2 granularity=full", 2));
}

TEST_CASE("a router's bias goes by its rate towards experts that are chosen less") {
  const Trained one = RunText(Experts, "micro_batch=2", 1);
  const Trained three = RunText(Experts, "micro_batch=2", 3);
  int biases = 0;
  for (size_t p = 0; p < one.names.size(); ++p) {
    if (!one.names[p].ends_with("router.bias")) continue;
    ++biases;
    bool up = false;
    bool down = false;
    for (size_t e = 0; e < one.weights[p].size(); ++e) {
      const float after = one.weights[p][e];
      CHECK(one.initial[p][e] == 0.0F);
      CHECK((after == 0.0F || after == 0.01F || after == -0.01F));
      up = up || after > 0;
      down = down || after < 0;
      CHECK(std::fabs(three.weights[p][e]) <= 0.0301F);
    }
    CHECK(up);
    CHECK(down);
  }
  CHECK(biases == 4);
}

TEST_CASE("experts drop the same tokens in every layout") {
  const std::vector<const char*> layouts = {"micro_batch=4",
                                            "dp=2 micro_batch=2",
                                            "ep=2 micro_batch=2",
                                            "ep=8 micro_batch=1",
                                            "cp=2 micro_batch=2",
                                            "tp=2 micro_batch=2",
                                            "tp=2 sequence_parallel=true micro_batch=2",
                                            "tp=2 sequence_parallel=true expert_tp=1 micro_batch=2",
                                            "pp=2 micro_batch=2",
                                            "ep=2 cp=2 micro_batch=2",
                                            "ep=2 cp=2 overlap=on micro_batch=4",
                                            "ep=2 tp=2 pp=2 sequence_parallel=true micro_batch=2",
                                            "ep=2 tp=2 sequence_parallel=true expert_tp=1 micro_batch=2",
                                            "ep=2 micro_batch=2 granularity=full"};
  const Trained one = RunText(DropByPosition, "micro_batch=2");
  // loss, and of each of four layers balance, z, entropy, the loads of 24 experts and what was dropped.
  REQUIRE(one.metrics[0].size() == 113);
  CHECK(one.metrics[0][27] > 0.2);
  double loads = 0;
  for (size_t e = 3; e < 27; ++e) loads += one.metrics[0][e];
  CHECK(loads == doctest::Approx(1));
  CheckTextLayouts(DropByPosition, layouts);
  // After an update weights of routes differ by more than rounding, and so may the order of two that are nearly equal.
  CheckTextLayouts(DropByWeight, layouts, 1);
}

TEST_CASE("experts train alike in every layout") {
  CheckTextLayouts(
      Experts, {"micro_batch=4",
                "dp=2 micro_batch=2",
                "ep=2 micro_batch=2",
                "ep=3 micro_batch=2",
                "ep=4 micro_batch=3",
                "ep=6 micro_batch=1",
                "ep=8 micro_batch=1",
                "ep=2 dp=2 micro_batch=2",
                "cp=2 micro_batch=2",
                "tp=2 micro_batch=2",
                "tp=2 sequence_parallel=true micro_batch=2",
                "tp=2 sequence_parallel=true expert_tp=1 micro_batch=2",
                "pp=2 micro_batch=2",
                "ep=2 tp=2 micro_batch=2",
                "ep=2 cp=2 micro_batch=2",
                "ep=2 tp=2 sequence_parallel=true micro_batch=2",
                "ep=2 tp=2 sequence_parallel=true expert_tp=1 micro_batch=1",
                "ep=3 pp=2 micro_batch=2",
                "ep=2 pp=2 virtual_stages=2 micro_batch=2",
                "ep=2 pp=2 schedule=zero_bubble micro_batch=2",
                "pp=4 schedule=zero_bubble micro_batch=2",
                "dp=2 zero_stage=1 micro_batch=2",
                "dp=2 zero_stage=2 micro_batch=2",
                "dp=2 zero_stage=3 micro_batch=2",
                "ep=2 zero_stage=1 micro_batch=2",
                "ep=2 dp=2 zero_stage=2 micro_batch=2",
                "ep=2 dp=2 zero_stage=3 micro_batch=2 granularity=full",
                "ep=2 dp=2 zero_stage=3 overlap=on micro_batch=2 granularity=full",
                "ep=2 dp=3 zero_stage=3 overlap=on micro_batch=2",
                "ep=2 micro_batch=2 granularity=full",
                "ep=2 micro_batch=2 granularity=selective modules=[\"attention\",\"norm\",\"activation\"]",
                "ep=4 tp=2 micro_batch=1 granularity=full",
                "tp=2 overlap=on micro_batch=4",
                "tp=2 sequence_parallel=true overlap=on micro_batch=4",
                "cp=2 overlap=on micro_batch=4",
                "ep=2 tp=2 sequence_parallel=true overlap=on micro_batch=2",
                "ep=2 cp=2 overlap=on micro_batch=2",
                "ep=2 cp=2 tp=2 sequence_parallel=true micro_batch=2",
                "ep=2 dp=2 pp=2 tp=2 sequence_parallel=true zero_stage=1 overlap=on micro_batch=2",
                "ep=4 dp=2 pp=2 micro_batch=1",
                "ep=6 cp=2 micro_batch=2"});
}

}  // namespace engine::train::testing
