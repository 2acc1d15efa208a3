// Budgets of rows that every iteration exceeds: models train as with buffers for all rows, in every layout.
#include <cmath>
#include <string>
#include <vector>

#include "engine/ops/ops.h"
#include "engine/predict/cost.h"
#include "tests/train/text_testing.h"

namespace engine::train::testing {
namespace {

constexpr const char* kPassesText = R"(
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
  { do = "route", as = "router", experts = "X", top_k = 2, aux_loss = 0.02, z_loss = 0.01, to = ["choice", "weight"] },
  { do = "experts", as = "experts", of = ["norm", "choice", "weight"], hidden = "F" },
  { do = "residual", as = "residual", of = ["x", "experts"], to = "x" },
]
)";

recipe::LoadResult LoadedPasses(const std::string& sets, const std::string& experts = "") {
  std::vector<std::string> all = SetsOf(sets);
  all.emplace_back("training.global_batch=24");
  std::string text = kPassesText;
  const std::string before = "hidden = \"F\"";
  text.insert(text.find(before) + before.size(), experts);
  return model::LoadText(text + kCommon + kAdamW, "test.toml", {.sets = all, .root = ""});
}

recipe::Recipe WithAllRows(const std::string& sets) { return Loaded(LoadedPasses(sets)); }

// An eighth of even loads.
recipe::Recipe WithFewRows(const std::string& sets) {
  return Loaded(LoadedPasses(sets + " expert_rows=0.125"));
}

// Of a plan's experts: how many instructions work in passes, and the most passes that one of them takes.
struct PassesOfPlan {
  int instructions = 0;
  std::int64_t most = 0;
};
PassesOfPlan CountPasses(const recipe::Recipe& recipe) {
  const absl::StatusOr<plan::Plan> plan = driver::CompileRecipe(recipe, {.profile = CpuDevice().profile});
  REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
  PassesOfPlan count;
  for (const plan::StagePlan& stage : plan->stages) {
    for (const plan::Segment& segment : stage.segments) {
      for (const plan::Instruction& instruction : segment.instructions) {
        if (instruction.op() != &ops::kExpertPasses && instruction.op() != &ops::kExpertPassesGrad) continue;
        ++count.instructions;
        count.most = std::max(count.most, instruction.attributes().Int("passes"));
      }
    }
  }
  return count;
}

void CheckAsWithAllRows(const Trained& expected, const std::string& sets) {
  CAPTURE(sets);
  const Trained other = RunText(WithFewRows, sets);
  CheckEqual(expected, other);
  for (const std::vector<double>& metrics : other.metrics) {
    // Of each of four layers balance, z, entropy, the loads of 24 experts and the share of the choices that are not of the
    // first pass, then the loss.
    constexpr size_t kOfLayer = 28;
    REQUIRE(metrics.size() == 4 * kOfLayer + 1);
    for (size_t layer = 0; layer < 4; ++layer) {
      CHECK(metrics[(layer + 1) * kOfLayer - 1] > 0.2);
      CHECK(metrics[(layer + 1) * kOfLayer - 1] <= 1);
    }
  }
}

}  // namespace

TEST_CASE("experts with a budget of rows that every iteration exceeds train as without one in every layout") {
  const Trained all = RunText(WithAllRows, "micro_batch=2");
  CHECK(all.losses.back() != all.losses[0]);
  for (const char* sets :
       {"micro_batch=2",
        "micro_batch=4",
        "dp=2 micro_batch=2",
        "ep=2 micro_batch=2",
        "ep=4 micro_batch=3",
        "ep=8 micro_batch=1",
        "cp=2 micro_batch=2",
        "tp=2 micro_batch=2",
        "tp=2 sequence_parallel=true micro_batch=2",
        "tp=2 sequence_parallel=true expert_tp=1 micro_batch=2",
        "ep=2 tp=2 micro_batch=2",
        "ep=2 cp=2 micro_batch=2",
        "ep=2 tp=2 sequence_parallel=true micro_batch=2",
        "ep=2 tp=2 sequence_parallel=true expert_tp=1 micro_batch=1",
        "ep=3 pp=2 micro_batch=2",
        "ep=2 pp=2 virtual_stages=2 micro_batch=2",
        "ep=2 pp=2 schedule=zero_bubble micro_batch=2",
        "ep=2 zero_stage=1 micro_batch=2",
        "ep=2 dp=2 zero_stage=2 micro_batch=2",
        "ep=2 dp=2 zero_stage=3 micro_batch=2",
        "ep=2 dp=2 zero_stage=3 overlap=on micro_batch=2 granularity=full",
        "ep=2 micro_batch=2 granularity=full",
        "ep=2 micro_batch=2 granularity=selective modules=[\"attention\",\"norm\",\"activation\"]",
        "ep=4 tp=2 micro_batch=1 granularity=full",
        "ep=2 tp=2 sequence_parallel=true overlap=on micro_batch=2",
        "ep=2 cp=2 overlap=on micro_batch=4",
        "ep=2 dp=2 pp=2 tp=2 sequence_parallel=true zero_stage=1 overlap=on micro_batch=2",
        "ep=4 dp=2 pp=2 micro_batch=1"}) {
    CheckAsWithAllRows(all, sets);
  }
}

// By position: which of two nearly equal weights is less may turn with rounding after an update.
TEST_CASE("with a capacity a budget of rows drops the same choices, and trains as without one") {
  constexpr const char* kCapacity = ", capacity = 0.7, drop = \"position\"";
  const auto limited = [](const std::string& sets) { return Loaded(LoadedPasses(sets, kCapacity)); };
  const auto few = [](const std::string& sets) {
    return Loaded(LoadedPasses(sets + " expert_rows=0.125", kCapacity));
  };
  const Trained expected = RunText(limited, "micro_batch=2");
  CHECK(expected.losses != RunText(WithAllRows, "micro_batch=2").losses);
  for (const char* sets :
       {"micro_batch=2", "ep=4 micro_batch=3", "ep=2 tp=2 micro_batch=2 granularity=full"}) {
    CAPTURE(sets);
    CHECK(CountPasses(few(sets)).instructions > 0);
    CheckEqual(expected, RunText(few, sets));
  }
}

TEST_CASE("a budget of rows decides the passes, and one of the worst load takes none") {
  // 24 experts, two a token: of ep 4 a rank has 6, at the worst both of a token, which is 4 times the mean.
  const auto passes = [](const std::string& sets) { return CountPasses(WithAllRows(sets)); };
  CHECK(passes("ep=4 micro_batch=3").instructions == 0);
  CHECK(passes("ep=4 micro_batch=3 expert_rows=4").instructions == 0);
  const PassesOfPlan two = passes("ep=4 micro_batch=3 expert_rows=2");
  CHECK(two.most == 2);
  CHECK(two.instructions >= 8);  // four layers, forward and backward
  CHECK(passes("ep=4 micro_batch=3 expert_rows=0.125").most == 32);
  // One rank of ep has all rows: nothing is beyond the mean.
  CHECK(passes("micro_batch=3 expert_rows=1.25").instructions == 0);
  const recipe::LoadResult refused = LoadedPasses("ep=4 micro_batch=3 expert_rows=0.05");
  REQUIRE(!refused.ok());
  const std::string text = Format(refused.diagnostics[0]);
  INFO(text);
  CHECK(text.find("with expert_rows 0.05 the worst load of a rank takes 80 passes, and the most is 64") !=
        std::string::npos);
  CHECK(text.find("parallelism.expert_rows of 0.07 or more") != std::string::npos);
}

TEST_CASE("a plan says what a budget of rows holds and how many passes loads take") {
  const absl::StatusOr<plan::Plan> plan = driver::CompileRecipe(
      WithAllRows("ep=4 micro_batch=3 expert_rows=0.5"), {.profile = CpuDevice().profile});
  REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
  std::string notes;
  for (const std::string& note : plan->notes) notes += note + "\n";
  INFO(notes);
  // 192 tokens, 6 experts: at the most 384 + 6·127 rows, 1,024 in blocks of 128; of 8 passes each takes 128.
  CHECK(notes.find("rows of experts: 128, with buffers of ") != std::string::npos);
  CHECK(notes.find("where the worst load is 1,024; passes 8 at the most, 6 at even loads, 6 at Zipf loads") !=
        std::string::npos);
}

TEST_CASE("each pass is predicted to launch its kernels, whether or not it finds rows") {
  const recipe::Recipe recipe = WithAllRows("ep=4 micro_batch=3 expert_rows=0.5");
  absl::StatusOr<plan::Plan> plan = driver::CompileRecipe(recipe, {.profile = CpuDevice().profile});
  REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
  const auto seconds = [&](const graph::OpDef& op, std::int64_t passes) {
    for (plan::StagePlan& stage : plan->stages) {
      for (plan::Segment& segment : stage.segments) {
        for (plan::Instruction& instruction : segment.instructions) {
          if (instruction.op() != &op) continue;
          std::get<plan::Kernel>(instruction.what).attributes.Set("passes", passes);
          return predict::CostModel(*plan, recipe.cluster).Seconds(instruction);
        }
      }
    }
    return 0.0;
  };
  const double launch = (seconds(ops::kExpertPasses, 8) - seconds(ops::kExpertPasses, 5)) / (3 * 6);
  CHECK(launch > 1e-6);
  CHECK(seconds(ops::kExpertPassesGrad, 8) - seconds(ops::kExpertPassesGrad, 5) ==
        doctest::Approx(3 * 13 * launch));
}

TEST_CASE("passes that end before all rows are worked on are no plan") {
  const absl::StatusOr<plan::Plan> good = driver::CompileRecipe(
      WithAllRows("ep=4 micro_batch=3 expert_rows=0.5"), {.profile = CpuDevice().profile});
  REQUIRE_MESSAGE(good.ok(), Message(good.status()));
  const auto broken = [&](const auto& change) {
    plan::Plan plan = *good;
    for (plan::StagePlan& stage : plan.stages) {
      for (plan::Segment& segment : stage.segments) {
        for (plan::Instruction& instruction : segment.instructions) {
          if (instruction.op() != &ops::kExpertPassesGrad) continue;
          change(&instruction);
          return Message(verify::VerifyPlacements(plan));
        }
      }
    }
    return std::string("there is none");
  };
  CHECK(broken([](plan::Instruction*) {}) == "");
  const std::string small = broken([](plan::Instruction* of) { of->scratch.elements /= 2; });
  INFO(small);
  CHECK(small.find("expert_passes_grad has 8 passes with scratch for ") != std::string::npos);
  CHECK(small.find("rows, and a rank may have 1024") != std::string::npos);
  const std::string few = broken([](plan::Instruction* of) {
    std::get<plan::Kernel>(of->what).attributes.Set("passes", std::int64_t{2});
  });
  INFO(few);
  CHECK(few.find("expert_passes_grad has 2 passes with scratch for ") != std::string::npos);
  const std::string none = broken([](plan::Instruction* of) {
    std::get<plan::Kernel>(of->what).attributes.Set("passes", std::int64_t{0});
  });
  CHECK(none.find("works in 0 passes") != std::string::npos);
}

}  // namespace engine::train::testing
