// Plans whose parameters are frozen, and what is broken in them.
#include "tests/graphs/graphs.h"
#include "tests/verify/mutations.h"

namespace engine::verify {
namespace {

graph::TrainingSettings Settings(const std::string& name) {
  if (name.starts_with("blocks.0.")) return {.frozen = true};
  return {};
}

const plan::Plan& WithSettings() {
  static const plan::Plan plan =
      plan::TinyPlanOf(plan::WithTraining(plan::Ladder(4), Settings), {"parallelism.dp=2"});
  return plan;
}

size_t IndexOf(const plan::Plan& plan, const std::function<bool(const plan::Bucket&)>& wanted) {
  const std::vector<plan::Bucket>& buckets = plan.stages[0].buckets;
  const auto found = std::find_if(buckets.begin(), buckets.end(), wanted);
  REQUIRE(found != buckets.end());
  return static_cast<size_t>(found - buckets.begin());
}
plan::Bucket& FrozenOf(plan::Plan& plan) {
  return plan.stages[0].buckets[IndexOf(plan, [](const plan::Bucket& b) { return b.frozen(); })];
}

}  // namespace

TEST_CASE("mutation: training settings") {
  const absl::Status good = Verify(WithSettings(), {});
  REQUIRE_MESSAGE(good.ok(), Message(good));
  Mutate(WithSettings(), "cs", "is frozen, but has gradients, shards, states or master weights",
         [](plan::Plan& plan) { FrozenOf(plan).states = plan.stages[0].buckets.back().states; });
  // As if they were trained: then what the optimizer keeps of them is missing, and so is their gradient.
  Mutate(WithSettings(), "cg", "training settings", [](plan::Plan& plan) { FrozenOf(plan).training = {}; });
  Mutate(WithSettings(), "cs", "is frozen, but has a gradient", [](plan::Plan& plan) {
    plan.parameters[static_cast<size_t>(FrozenOf(plan).items[0].parameter)].gradient =
        plan.parameters[0].gradient;
  });
  Mutate(WithSettings(), "g", "is frozen, but the backward passes add to its gradient", [](plan::Plan& plan) {
    const std::int32_t other = plan.parameters.back().gradient;
    plan.values[static_cast<size_t>(other)].parameter = FrozenOf(plan).items[0].parameter;
  });
}

}  // namespace engine::verify
