// Plans that count how often experts are chosen, and what is broken in them.
#include "engine/driver/compile_recipe.h"
#include "engine/model/load.h"
#include "tests/verify/mutations.h"

namespace engine::verify {
namespace {

// Four layers of routers on two ranks of tp, which all choose for all tokens.
const plan::Plan& WithRouters() {
  static const plan::Plan plan = [] {
    const recipe::LoadResult loaded =
        model::Load(std::string(ENGINE_SOURCE_DIR) + "/recipes/experts.toml",
                    {.sets = {"parallelism.ep=1", "parallelism.tp=2"}, .root = ""});
    REQUIRE(loaded.ok());
    absl::StatusOr<plan::Plan> made = driver::CompileUnverified(loaded.recipe, {});
    REQUIRE_MESSAGE(made.ok(), Message(made.status()));
    return *std::move(made);
  }();
  return plan;
}

plan::PlanMetric& LoadOf(plan::Plan& plan) {
  const auto found = std::find_if(plan.metrics.begin(), plan.metrics.end(),
                                  [](const plan::PlanMetric& metric) { return metric.classes > 0; });
  REQUIRE(found != plan.metrics.end());
  return *found;
}

}  // namespace

TEST_CASE("mutation: counts of experts") {
  const absl::Status good = Verify(WithRouters(), {});
  REQUIRE_MESSAGE(good.ok(), Message(good));
  Mutate(WithRouters(), "gs", "the numbers of layers.0.mlp.router.load begin at",
         [](plan::Plan& plan) { ++LoadOf(plan).first; });
  Mutate(WithRouters(), "gs", "the numbers of layers.1.mlp.router.balance begin at",
         [](plan::Plan& plan) { --LoadOf(plan).classes; });
  Mutate(WithRouters(), "g", "adds to the layers.0.mlp.router.load 2 times, not 1", [](plan::Plan& plan) {
    Double(plan.stages[0].segments[static_cast<size_t>(plan.stages[0].chunks[0].train().forward)],
           "route_count");
  });
  Mutate(WithRouters(), "g", "what it adds to is repeated over tp", [](plan::Plan& plan) {
    plan::Segment& forward =
        plan.stages[0].segments[static_cast<size_t>(plan.stages[0].chunks[0].train().forward)];
    forward.instructions[Find(forward, "route_count")].AsKernel()->only_first = {};
  });
}

}  // namespace engine::verify
