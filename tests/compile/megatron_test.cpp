// What logs of Megatron-LM say of a run holds for the plan of its imported recipe.
#include <doctest/doctest.h>

#include <string>

#include "tests/plan/plans.h"

namespace engine::compile {
namespace {

plan::Plan PlanOf(const std::string& name) {
  const recipe::LoadResult loaded =
      recipe::Load(std::string(ENGINE_SOURCE_DIR) + "/recipes/megatron/" + name + ".toml");
  REQUIRE(loaded.ok());
  absl::StatusOr<plan::Plan> plan = driver::CompileUnverified(loaded.recipe, {});
  if (!plan.ok()) FAIL(Message(plan.status()));
  return *std::move(plan);
}

}  // namespace

TEST_CASE("megatron: parameters on a rank are as many as in the log") {
  // "number of parameters on (tensor, pipeline) model parallel rank (4, 0): 941594624"
  CHECK(PlanOf("gpt3-hyperpod").stages[0].parameter_count == 941594624);
}

TEST_CASE("megatron: stages have the layers that Megatron-LM gives them") {
  const plan::Plan plan = PlanOf("gpt2-large-pp2");
  REQUIRE(plan.stages.size() == 2);
  CHECK(plan.BlocksIn(plan.stages[0].chunks[0]) == 18);
  CHECK(plan.BlocksBefore(plan.stages[1].chunks[0]) == 18);
}

}  // namespace engine::compile
