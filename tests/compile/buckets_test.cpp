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

}  // namespace engine::compile
