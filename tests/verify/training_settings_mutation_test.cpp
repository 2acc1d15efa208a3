// Plans whose parameters are frozen, or have a learning rate and a weight decay of their own, and what is broken in them.
#include "tests/graphs/graphs.h"
#include "tests/verify/mutations.h"

namespace engine::verify {
namespace {

graph::TrainingSettings Settings(const std::string& name) {
  if (name.starts_with("blocks.0.")) return {.frozen = true};
  if (name.starts_with("blocks.1.")) return {.learning_rate_scale = 0.5};
  if (name.starts_with("blocks.2.")) return {.weight_decay = 0.25};
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

// The update of that bucket.
plan::Kernel& UpdateOf(plan::Plan& plan, const std::function<bool(const plan::Bucket&)>& wanted) {
  const std::string name = fmt::format("bucket.{}.adamw", IndexOf(plan, wanted));
  for (plan::Segment& segment : plan.stages[0].segments) {
    for (plan::Instruction& instruction : segment.instructions) {
      if (instruction.name == name) return *instruction.AsKernel();
    }
  }
  FAIL("no update " << name);
  return *plan.stages[0].segments[0].instructions[0].AsKernel();
}

bool HasScale(const plan::Bucket& bucket) { return bucket.training.learning_rate_scale != 1; }
bool HasDecay(const plan::Bucket& bucket) { return bucket.training.weight_decay.has_value(); }

}  // namespace

TEST_CASE("mutation: training settings") {
  const absl::Status good = Verify(WithSettings(), {});
  REQUIRE_MESSAGE(good.ok(), Message(good));
  Mutate(WithSettings(), "cs", "is frozen, but has gradients, shards, states or master weights",
         [](plan::Plan& plan) { FrozenOf(plan).states = plan.stages[0].buckets.back().states; });
  // As if they were trained: then what the optimizer keeps of them is missing, and so is their gradient.
  Mutate(WithSettings(), "cg", "training settings", [](plan::Plan& plan) { FrozenOf(plan).training = {}; });
  Mutate(WithSettings(), "cg", "training settings", [](plan::Plan& plan) {
    const size_t b = IndexOf(plan, HasScale);
    plan.stages[0].buckets[b].training.learning_rate_scale = 0.75;
  });
  Mutate(WithSettings(), "g", "multiplies the learning rate by 0.75 for parameters whose scale is 0.5",
         [](plan::Plan& plan) { UpdateOf(plan, HasScale).attributes.Set(plan::kLearningRateScale, 0.75); });
  Mutate(WithSettings(), "g", "multiplies the learning rate by 0.5 for parameters whose scale is 1",
         [](plan::Plan& plan) {
           UpdateOf(plan, [](const plan::Bucket& b) {
             return !b.frozen() && !HasScale(b);
           }).attributes.Set(plan::kLearningRateScale, 0.5);
         });
  Mutate(WithSettings(), "g", "has weight decay 0.1 for parameters whose own is 0.25",
         [](plan::Plan& plan) { UpdateOf(plan, HasDecay).attributes.Set(plan::kWeightDecay, 0.1); });
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
