// Where the optimizer's states of a bucket lie, and in which format.
#include "engine/compile/buckets.h"

#include <doctest/doctest.h>

#include "engine/plan/optimizer.h"

namespace engine::compile {

TEST_CASE(
    "buckets: the optimizer's states lie one behind the other, those that do not follow the key in fp32") {
  static constexpr plan::OptimizerState kStates[] = {
      {.name = "a", .title = "a", .folder = "optimizer/a"},
      {.name = "b", .title = "b", .folder = "optimizer/b", .follows_dtype = false},
      {.name = "c", .title = "c", .folder = "optimizer/c"}};
  plan::OptimizerDef optimizer = *plan::FindOptimizer("sgd");
  optimizer.states = kStates;
  for (const DType moments : {DType::kF32, DType::kBF16}) {
    std::vector<plan::Bucket> buckets(1);
    buckets[0].elements = 1024;
    buckets[0].shards = 2;
    std::int64_t cursor = 0;
    plan::MemoryBreakdown memory;
    PlaceBuckets({.optimizer = &optimizer, .moments = moments}, &cursor, &memory, &buckets);
    const std::vector<plan::BufferRef>& states = buckets[0].states;
    REQUIRE(states.size() == 3);
    CHECK(states[0].dtype == moments);
    CHECK(states[1].dtype == DType::kF32);
    CHECK(states[2].dtype == moments);
    std::int64_t end = 2 * 1024 * 4;  // behind the parameters and the gradients
    for (const plan::BufferRef& state : states) {
      CHECK(state.elements == 512);
      CHECK(state.offset == end);
      end += state.bytes();
    }
    CHECK(cursor == end);
    CHECK(memory.optimizer == end - 2 * 1024 * 4);
  }
  std::vector<plan::Bucket> buckets(1);
  buckets[0].elements = 1024;
  std::int64_t cursor = 0;
  plan::MemoryBreakdown memory;
  PlaceBuckets({.training = false}, &cursor, &memory, &buckets);
  CHECK(buckets[0].states.empty());
}

namespace {

// Matrices of 128 elements and one rank, with these settings.
plan::Plan PlanOf(const std::vector<graph::TrainingSettings>& settings) {
  plan::Plan plan;
  const auto add = [&](graph::ValueKind kind) {
    plan.values.push_back(
        {.name = "value", .shape = {128}, .dtype = DType::kBF16, .layout = {}, .local = {128}, .kind = kind});
    return static_cast<std::int32_t>(plan.values.size() - 1);
  };
  for (const graph::TrainingSettings& training : settings) {
    plan::PlanParameter parameter;
    parameter.value = add(graph::ValueKind::kParameter);
    parameter.weight_decay = true;
    if (!training.frozen) parameter.gradient = add(graph::ValueKind::kAccumulator);
    parameter.training = training;
    parameter.holders = {0};
    plan.parameters.push_back(std::move(parameter));
  }
  return plan;
}

std::vector<plan::Bucket> BucketsOf(const std::vector<graph::TrainingSettings>& settings) {
  return MakeBuckets(PlanOf(settings), std::vector<bool>(settings.size(), true),
                     std::vector<std::int32_t>(settings.size(), kNoUnit), 0, 0);
}

}  // namespace

TEST_CASE("buckets: parameters that are trained differently are kept apart") {
  const std::vector<plan::Bucket> buckets = BucketsOf({{},
                                                       {.learning_rate_scale = 0.5},
                                                       {.weight_decay = 0.0},
                                                       {.frozen = true},
                                                       {},
                                                       {.learning_rate_scale = 0.5, .weight_decay = 0.0},
                                                       {.frozen = true},
                                                       {.weight_decay = 0.0}});
  std::vector<std::vector<std::int32_t>> items;
  for (const plan::Bucket& bucket : buckets) {
    std::vector<std::int32_t>& of = items.emplace_back();
    for (const plan::Bucket::Item& item : bucket.items) of.push_back(item.parameter);
  }
  CHECK((items == std::vector<std::vector<std::int32_t>>{{0, 4}, {1}, {2, 7}, {3, 6}, {5}}));
  CHECK(buckets[1].training.learning_rate_scale == 0.5);
  CHECK(buckets[2].training.weight_decay == 0.0);
  CHECK(buckets[3].frozen());
}

TEST_CASE("buckets: frozen parameters take the bytes of their weights and no others") {
  std::vector<plan::Bucket> buckets = BucketsOf({{}, {.frozen = true}});
  REQUIRE(buckets.size() == 2);
  std::int64_t cursor = 0;
  plan::MemoryBreakdown memory;
  PlaceBuckets({.optimizer = plan::FindOptimizer("adamw")}, &cursor, &memory, &buckets);
  CHECK(buckets[1].parameter.bytes() == 256);
  CHECK(buckets[1].gradient.elements == 0);
  CHECK(buckets[1].master.elements == 0);
  CHECK(buckets[1].states.empty());
  CHECK(memory.parameters == 2 * 256);
  CHECK(memory.gradients == 256);          // of the other one, in bf16
  CHECK(memory.optimizer == 3 * 128 * 4);  // its master weights and moments
}

// What lies between parameters counts in the norm of the gradients, so that no other bucket may leave anything there.
TEST_CASE("buckets: whole gradients are taken in turn by buckets that have gaps in the same places") {
  using Items = std::vector<plan::Bucket::Item>;
  const Items with_gap = {{0, 0, 200}, {1, 256, 256}};
  const Items without = {{2, 0, 512}};
  const auto placed = [&](std::int64_t zero_stage, int in_turns) {
    std::vector<plan::Bucket> buckets;
    for (const Items& items : {with_gap, without, with_gap, without, with_gap}) {
      plan::Bucket& bucket = buckets.emplace_back();
      bucket.items = items;
      bucket.elements = 512;
      bucket.shards = 2;
      bucket.block = static_cast<std::int32_t>(buckets.size());
    }
    std::int64_t cursor = 0;
    plan::MemoryBreakdown memory;
    PlaceBuckets({.zero_stage = zero_stage, .optimizer = plan::FindOptimizer("adamw"), .in_turns = in_turns},
                 &cursor, &memory, &buckets);
    return buckets;
  };
  const std::vector<plan::Bucket> alone = placed(3, 1);
  CHECK(alone[0].gradient.offset == alone[2].gradient.offset);
  CHECK(alone[1].gradient.offset == alone[3].gradient.offset);
  CHECK(!alone[0].gradient.Overlaps(alone[1].gradient));
  CHECK(alone[0].parameter.offset == alone[1].parameter.offset);  // gathered whole, gaps too
  const std::vector<plan::Bucket> behind = placed(2, 2);
  CHECK(!behind[0].gradient.Overlaps(behind[1].gradient));
  CHECK(!behind[0].gradient.Overlaps(behind[2].gradient));
  CHECK(!behind[2].gradient.Overlaps(behind[3].gradient));
  CHECK(behind[0].gradient.offset == behind[4].gradient.offset);
}

}  // namespace engine::compile
