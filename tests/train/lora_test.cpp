// [lora]: low-rank adapters beside frozen weights. Ten AdamW steps are PyTorch's (tests/oracles/torch_lora.py), every layout
// gives one rank's numbers, and plans keep frozen weights as they should be kept.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/train/oracle_engine.h"
#include "tests/train/text_testing.h"

namespace engine::train::testing {
namespace {

constexpr OracleBound kLoraBound{.longest_product = 131, .products = 2 * 14 + 1};

recipe::Recipe LoraRecipe(const std::string& name, const OracleGroup& group, const std::string& targets) {
  const auto set = [&](const char* key, const char* attribute) {
    return fmt::format("{}={}", key, group.Number(attribute));
  };
  const std::vector<std::string> sets = {set("optimizer.learning_rate", "learning_rate"),
                                         set("optimizer.beta1", "beta1"),
                                         set("optimizer.beta2", "beta2"),
                                         set("optimizer.epsilon", "epsilon"),
                                         set("optimizer.weight_decay", "weight_decay"),
                                         set("optimizer.clip_grad_norm", "clip"),
                                         set("lora.rank", "rank"),
                                         set("lora.alpha", "alpha"),
                                         "lora.targets=" + targets,
                                         "training.iterations=10"};
  return Loaded(model::Load(std::string(ENGINE_SOURCE_DIR "/tests/train/texts/") + name + ".toml",
                            {.sets = sets, .root = ""}));
}

void CheckLoraSteps(const std::string& name, const std::string& targets) {
  INFO(name);
  const OracleGroup group(ENGINE_SOURCE_DIR "/tests/oracles/lora.h5", name);
  OracleEngine engine(LoraRecipe(name, group, targets), group);
  const auto is_near = [&](const std::string& result, size_t step, double actual) {
    CAPTURE(result);
    const double expected = group.Doubles(result)[step];
    CHECK(std::abs(actual - expected) <= kLoraBound.Of(ErrorOf(group, result), expected));
  };
  const size_t steps = group.Doubles("losses").size();
  REQUIRE(steps == 10);
  for (size_t step = 0; step < steps; ++step) {
    CAPTURE(step);
    const executor::IterationResult result = engine.Train(static_cast<int>(step));
    is_near("losses", step, engine.MetricOf(result, "loss"));
    is_near("grad_norms", step, result.grad_norm);
  }
  int adapters = 0;
  for (std::int32_t p = 0; p < engine.parameters(); ++p) {
    const bool is_adapter = engine.Name(p).find(".lora_") != std::string::npos;
    adapters += is_adapter ? 1 : 0;
    const std::string expected_name = (is_adapter ? "trained/" : "parameters/") + engine.Name(p);
    INFO(expected_name);
    const std::vector<float> expected = group.Floats(expected_name);
    const double bound = is_adapter ? kLoraBound.Of(ErrorOf(group, expected_name), LargestOf(expected)) : 0;
    CheckClose(expected, engine.Weight(p), bound);
  }
  CHECK(adapters == static_cast<int>(group.NamesIn("trained").size()));
}

recipe::Recipe Adapted(const std::string& model, const std::string& sets,
                       std::vector<std::string> more = {}) {
  std::vector<std::string> all = SetsOf(sets);
  all.insert(all.end(), {"lora.rank=3", "lora.alpha=8"});
  all.insert(all.end(), more.begin(), more.end());
  return Loaded(model::LoadText(model + kCommon + kAdamW, "test.toml", {.sets = all, .root = ""}));
}

// B is zeros at first, and A has no gradient then: a few steps show both.
const std::vector<const char*> kLoraLayouts = {
    "micro_batch=8",
    "granularity=full micro_batch=2",
    "granularity=cheap micro_batch=4",
    "dp=2 zero_stage=1 micro_batch=2",
    "dp=2 zero_stage=2 micro_batch=2",
    "dp=2 zero_stage=3 micro_batch=2",
    "dp=4 micro_batch=1",
    "tp=2 micro_batch=2",
    "tp=2 sequence_parallel=true micro_batch=2",
    "tp=2 sequence_parallel=true granularity=full micro_batch=4",
    "tp=2 overlap=on micro_batch=4",
    "tp=2 sequence_parallel=true overlap=on micro_batch=4",
    "cp=2 micro_batch=2",
    "cp=2 tp=2 sequence_parallel=true micro_batch=2",
    "pp=2 micro_batch=2",
    "pp=2 virtual_stages=2 micro_batch=2",
    "pp=2 schedule=zero_bubble micro_batch=2",
    "dp=2 tp=2 pp=2 sequence_parallel=true zero_stage=1 micro_batch=1",
};

// The ranks add up the same rows, so that every layout gives one rank's losses, norms and gradients; and frozen weights keep
// their bits.
void CheckLoraLayouts(const std::string& model) {
  const auto make = [&](const std::string& sets) { return Adapted(model, sets); };
  const Trained one = RunText(make, "micro_batch=2", 4);
  for (size_t p = 0; p < one.names.size(); ++p) {
    INFO(one.names[p]);
    const bool is_adapter = one.names[p].find(".lora_") != std::string::npos;
    CHECK((one.weights[p] == one.initial[p]) != is_adapter);
  }
  CheckTextLayouts(make, kLoraLayouts);
}

}  // namespace

TEST_CASE("lora: ten AdamW steps are PyTorch's") {
  CheckLoraSteps("qwen2", R"(["*"])");
  CheckLoraSteps("neox", R"(["*.qkv","*.fc2"])");
}

TEST_CASE("lora: every layout gives one rank's numbers, gated") { CheckLoraLayouts(kLlamaLike); }
TEST_CASE("lora: every layout gives one rank's numbers, with biases and dropout") {
  CheckLoraLayouts(kGptLike);
}

TEST_CASE("lora: frozen weights are 16 bits wide and nothing else; adapters have masters and moments") {
  const recipe::Recipe recipe = Adapted(kLlamaLike, "micro_batch=2", {"precision.compute=bf16"});
  const absl::StatusOr<plan::Plan> plan =
      driver::CompileRecipe(recipe, {.profile = CpuDevice().profile, .training = true});
  REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
  std::int64_t trained = 0;
  for (const plan::PlanParameter& parameter : plan->parameters) {
    INFO(parameter.name);
    const bool is_adapter = parameter.role == graph::Role::kAdapter;
    CHECK(parameter.training.frozen == !is_adapter);
    CHECK((parameter.gradient >= 0) == is_adapter);
    if (is_adapter) trained += parameter.logical_shape.elements();
  }
  CHECK(trained == 4 * 3 * ((32 + 64) + (32 + 32) + (32 + 96) + (48 + 32)));
  for (const plan::Bucket& bucket : plan->stages[0].buckets) {
    CHECK(bucket.parameter_dtype == DType::kBF16);
    CHECK((bucket.master.elements == 0) == bucket.frozen());
    CHECK(bucket.states.empty() == bucket.frozen());
    CHECK((bucket.gradient.elements == 0) == bucket.frozen());
  }
}

TEST_CASE("lora: a group trains more than the adapters") {
  const recipe::Recipe recipe = Loaded(model::LoadText(
      std::string(kLlamaLike) + kCommon + kAdamW +
          "group = [ { match = \"layers.*.norm.weight\", frozen = false } ]\n[lora]\nrank = 2\n",
      "test.toml", {.sets = {}, .root = ""}));
  const absl::StatusOr<plan::Plan> plan = driver::CompileRecipe(recipe, {.profile = CpuDevice().profile});
  REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
  for (const plan::PlanParameter& parameter : plan->parameters) {
    INFO(parameter.name);
    const bool is_norm = parameter.name.find(".norm.") != std::string::npos;
    CHECK(parameter.training.frozen == (!is_norm && parameter.role != graph::Role::kAdapter));
  }
}

TEST_CASE("lora: a pattern that names no step is a mistake at its place") {
  const auto mistake = [](const std::string& targets) {
    const recipe::LoadResult loaded =
        model::LoadText(std::string(kLlamaLike) + kCommon + kAdamW + "[lora]\nrank = 2\ntargets = " + targets,
                        "test.toml", {.sets = {}, .root = ""});
    for (const Diagnostic& diagnostic : loaded.diagnostics) {
      if (diagnostic.severity == Severity::kError) return Format(diagnostic);
    }
    return std::string("none");
  };
  const std::string unknown = mistake(R"(["*.qkv", "layers.0.attention.qvk"])");
  CHECK(unknown.find("test.toml:") != std::string::npos);
  CHECK(unknown.find("no linear step of a stack is called 'layers.0.attention.qvk'") != std::string::npos);
  CHECK(unknown.find("layers.0.attention.qkv") != std::string::npos);
  CHECK(mistake(R"(["head"])").find("no linear step of a stack is called 'head'") != std::string::npos);
  const recipe::LoadResult experts =
      model::Load(ENGINE_SOURCE_DIR "/recipes/mixtral-s-1gpu.toml",
                  {.sets = {"lora.rank=2", R"(lora.targets=["*.experts.*"])"}, .root = ""});
  REQUIRE(!experts.diagnostics.empty());
  CHECK(Format(experts.diagnostics[0])
            .find("called '*.experts.*': matrices of experts and routers have no adapters") !=
        std::string::npos);
  CHECK(mistake("[]").find("lora.targets names no step") != std::string::npos);
  CHECK(mistake(R"(["*.qkv", "*.fc?"])") == "none");
}

}  // namespace engine::train::testing
