// Ten AdamW steps of small models with experts against PyTorch's: losses, the routers' losses, norms of the gradients, most of
// which are clipped, and the weights at the end. tests/oracles/torch_steps.py has PyTorch's side.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <string>
#include <vector>

#include "engine/model/load.h"
#include "tests/train/oracle_engine.h"

namespace engine::train::testing {
namespace {

// As of texts_oracle_test.cpp, for at most three layers. What earlier steps add is in PyTorch's own float32 error, by which
// most of the bound goes.
constexpr OracleBound kStepsBound{.longest_product = 131, .products = 3 * 6 + 1};

recipe::Recipe StepsRecipe(const std::string& name, const OracleGroup& group) {
  const auto set = [&](const char* key, const char* attribute) {
    return fmt::format("optimizer.{}={}", key, group.Number(attribute));
  };
  const std::vector<std::string> sets = {set("learning_rate", "learning_rate"),
                                         set("beta1", "beta1"),
                                         set("beta2", "beta2"),
                                         set("epsilon", "epsilon"),
                                         set("weight_decay", "weight_decay"),
                                         set("clip_grad_norm", "clip"),
                                         "training.iterations=10"};
  const recipe::LoadResult loaded = model::Load(
      std::string(ENGINE_SOURCE_DIR "/tests/train/texts/") + name + ".toml", {.sets = sets, .root = ""});
  std::string errors;
  for (const Diagnostic& diagnostic : loaded.diagnostics) errors += Format(diagnostic);
  REQUIRE_MESSAGE(loaded.ok(), errors);
  return loaded.recipe;
}

void CheckSteps(const std::string& name) {
  INFO(name);
  const OracleGroup group(ENGINE_SOURCE_DIR "/tests/oracles/steps.h5", name);
  OracleEngine engine(StepsRecipe(name, group), group);
  const auto is_near = [&](const std::string& result, size_t step, double actual) {
    CAPTURE(result);
    const double expected = group.Doubles(result)[step];
    CHECK(std::abs(actual - expected) <= kStepsBound.Of(ErrorOf(group, result), expected));
  };
  const std::vector<std::string> routers = group.NamesIn("router_losses");
  CHECK(!routers.empty());
  const size_t steps = group.Doubles("losses").size();
  REQUIRE(steps == 10);
  for (size_t step = 0; step < steps; ++step) {
    CAPTURE(step);
    const executor::IterationResult result = engine.Train(static_cast<int>(step));
    is_near("losses", step, engine.MetricOf(result, "loss"));
    is_near("grad_norms", step, result.grad_norm);
    for (const std::string& router : routers)
      is_near("router_losses/" + router, step, engine.MetricOf(result, router));
  }
  for (std::int32_t p = 0; p < engine.parameters(); ++p) {
    const std::string trained = "trained/" + engine.Name(p);
    INFO(trained);
    const std::vector<float> expected = group.Floats(trained);
    CheckClose(expected, engine.Weight(p), kStepsBound.Of(ErrorOf(group, trained), LargestOf(expected)));
  }
}

}  // namespace

TEST_CASE("texts with experts take PyTorch's ten AdamW steps") {
  for (const char* name : {"mixtral", "olmoe", "qwen2-moe", "qwen3-moe", "switch"}) CheckSteps(name);
}

}  // namespace engine::train::testing
