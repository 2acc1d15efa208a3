// The rewrite of what one microbatch runs for two halves: nothing is left out, and nothing is made twice.
#include "engine/compile/halves.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend/cuda/profile/profile.h"
#include "tests/plan/plans.h"

namespace engine::compile {
namespace {

plan::Plan PlanOf(std::vector<std::string> sets, const char* overlap, const char* samples) {
  sets.insert(sets.end(), {overlap, samples});
  absl::StatusOr<plan::Plan> plan =
      driver::CompileUnverified(plan::TinyRecipe(true, sets), {.profile = backend::cuda::CudaProfile(true)});
  REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
  return *std::move(plan);
}

// Kernel and node, in order, of what the graph asks for: buckets are reduced elsewhere without exchange beside
// computation.
using Names = std::vector<std::pair<std::string, std::string>>;

Names NamesOf(const plan::Segment& segment, plan::Half half) {
  Names names;
  for (const plan::Instruction& i : segment.instructions) {
    if (i.half == half && (i.op() != nullptr || i.AsConversion() != nullptr))
      names.emplace_back(i.kernel(), i.name);
  }
  return names;
}

}  // namespace

TEST_CASE(
    "halves: each runs what a microbatch alone would, in its order, but for what is made once of both") {
  for (const std::vector<std::string>& sets : std::vector<std::vector<std::string>>{
           {"parallelism.tp=2"},
           {"parallelism.tp=2", "parallelism.sequence_parallel=true", "recompute.granularity=full"},
           {"parallelism.cp=2"},
           {"parallelism.tp=2", "parallelism.pp=2", "parallelism.schedule=zero_bubble"}}) {
    CAPTURE(sets.front());
    const plan::Plan whole = PlanOf(sets, "parallelism.overlap=off", "training.micro_batch=2");
    const plan::Plan halves = PlanOf(sets, "parallelism.overlap=on", "training.micro_batch=4");
    REQUIRE(whole.halves == 1);
    REQUIRE(halves.halves == 2);
    REQUIRE(whole.microbatches == halves.microbatches);
    for (size_t s = 0; s < whole.stages.size(); ++s) {
      REQUIRE(whole.stages[s].segments.size() == halves.stages[s].segments.size());
      for (size_t i = 0; i < whole.stages[s].segments.size(); ++i) {
        const plan::Segment& segment = halves.stages[s].segments[i];
        if (!segment.halves) continue;
        CAPTURE(segment.name);
        const Names both = NamesOf(segment, plan::Half::kBoth);
        Names alone;  // of both halves, as one microbatch has them among the others
        Names each;
        for (const auto& name : NamesOf(whole.stages[s].segments[i], plan::Half::kFirst)) {
          const bool of_both = std::find(both.begin(), both.end(), name) != both.end();
          (of_both ? alone : each).push_back(name);
        }
        CHECK(NamesOf(segment, plan::Half::kFirst) == each);
        CHECK(NamesOf(segment, plan::Half::kSecond) == each);
        CHECK(both == alone);
        CHECK(segment.flops == doctest::Approx(whole.stages[s].segments[i].flops));
      }
    }
  }
}

TEST_CASE(
    "halves: what is made of both takes twice the rows; of sums that both add to, the first overwrites") {
  const plan::Plan plan = PlanOf({"parallelism.tp=2"}, "parallelism.overlap=on", "training.micro_batch=4");
  const plan::Segment& backward =
      plan.stages[0].segments[static_cast<size_t>(plan.stages[0].chunks[0].train().backward)];
  int both = 0;
  int fresh[2] = {0, 0};
  for (const plan::Instruction& i : backward.instructions) {
    if (i.half != plan::Half::kBoth) {
      fresh[static_cast<size_t>(i.half)] += i.fresh() != 0 ? 1 : 0;
      continue;
    }
    ++both;
    for (const plan::BufferRef& input : i.inputs)
      CHECK(input.elements == 2 * plan.values[static_cast<size_t>(input.value)].local.elements());
  }
  CHECK(both > 0);
  CHECK(fresh[0] > 0);  // of norms
  CHECK(fresh[1] == 0);
}

}  // namespace engine::compile
