// Layout equality: any layout gives the one-rank run's numbers.
#include "tests/train/equality.h"
#include "tests/train/testing.h"

namespace engine::train::testing {
namespace {

struct MeshCase {
  const char* sets;  // blank-separated
};

constexpr MeshCase kMeshes[] = {
    {"micro_batch=1"},
    {"micro_batch=4"},
    {"granularity=full"},
    {"granularity=selective modules=[\"attention\"]"},
    {"granularity=selective modules=[\"norm\",\"activation\"] micro_batch=2"},
    {"dp=2 micro_batch=4"},
    {"dp=4 micro_batch=1"},
    {"dp=2 zero_stage=1 micro_batch=2"},
    {"dp=4 zero_stage=1 micro_batch=2"},
    {"tp=2"},
    {"tp=2 sequence_parallel=true"},
    {"tp=2 sequence_parallel=true granularity=full micro_batch=4"},
    {"tp=2 sequence_parallel=true granularity=selective modules=[\"attention\",\"norm\",\"activation\"]"},
    {"cp=2"},
    {"cp=4 micro_batch=4"},
    {"cp=2 tp=2"},
    {"cp=2 tp=2 sequence_parallel=true"},
    {"cp=2 dp=2 zero_stage=1 micro_batch=4"},
    {"pp=2 micro_batch=2"},
    {"pp=4 micro_batch=1"},
    {"pp=2 virtual_stages=2 micro_batch=2"},
    {"pp=2 virtual_stages=2 micro_batch=1 granularity=full"},
    {"pp=2 layers_per_stage=[3,1] micro_batch=4"},
    {"pp=4 micro_batch=8"},
    {"dp=2 tp=2 micro_batch=4"},
    {"dp=2 tp=2 sequence_parallel=true zero_stage=1 micro_batch=2"},
    {"dp=2 pp=2 micro_batch=2 zero_stage=1"},
    {"tp=2 pp=2 micro_batch=2 sequence_parallel=true"},
    {"dp=2 tp=2 pp=2 micro_batch=1"},
    {"dp=2 tp=2 pp=2 micro_batch=1 sequence_parallel=true zero_stage=1 virtual_stages=2"},
    {"cp=2 pp=2 tp=2 micro_batch=4"},
    {"cp=2 dp=2 tp=2 micro_batch=2 sequence_parallel=true zero_stage=1 granularity=full"},
    {"dp=2 overlap=on micro_batch=1"},
    {"dp=4 zero_stage=1 overlap=on micro_batch=2"},
    {"dp=2 pp=2 micro_batch=2 zero_stage=1 overlap=on"},
    {"tp=2 overlap=on micro_batch=4"},
    {"tp=2 overlap=on micro_batch=2 granularity=selective modules=[\"attention\",\"norm\"]"},
    {"tp=2 sequence_parallel=true overlap=on micro_batch=8"},
    {"cp=2 overlap=on micro_batch=4"},
    {"cp=2 dp=2 tp=2 sequence_parallel=true zero_stage=1 overlap=on micro_batch=2"},
    {"tp=2 pp=2 overlap=on micro_batch=4"},
    {"tp=2 pp=2 sequence_parallel=true overlap=on micro_batch=2"},
    {"tp=2 pp=2 virtual_stages=2 sequence_parallel=true overlap=on micro_batch=2 granularity=full"},
    {"tp=2 pp=4 overlap=on micro_batch=2 granularity=selective modules=[\"attention\",\"norm\"]"},
    {"cp=2 pp=2 overlap=on micro_batch=2"},
    {"cp=2 pp=2 virtual_stages=2 overlap=on micro_batch=2"},
    {"dp=2 tp=2 pp=2 sequence_parallel=true zero_stage=1 overlap=on micro_batch=2"},
    {"pp=2 schedule=zero_bubble micro_batch=2"},
    {"pp=2 schedule=zero_bubble micro_batch=8"},
    {"pp=4 schedule=zero_bubble micro_batch=1 granularity=full"},
    {"pp=4 schedule=zero_bubble micro_batch=4 granularity=selective modules=[\"attention\",\"norm\"]"},
    {"dp=2 pp=2 schedule=zero_bubble zero_stage=1 overlap=on micro_batch=2"},
    {"pp=2 schedule=zero_bubble zero_stage=3 overlap=on micro_batch=2"},  // nothing to shard over
    {"tp=2 pp=2 schedule=zero_bubble sequence_parallel=true zero_stage=2 overlap=on micro_batch=2"},
    {"tp=2 pp=2 schedule=zero_bubble micro_batch=1"},
    {"tp=2 pp=2 schedule=zero_bubble sequence_parallel=true micro_batch=2 granularity=full"},
    {"cp=2 pp=2 schedule=zero_bubble micro_batch=2"},
    {"tp=2 pp=2 schedule=zero_bubble overlap=on micro_batch=2"},
    {"tp=2 pp=2 schedule=zero_bubble sequence_parallel=true overlap=on micro_batch=4 granularity=full"},
    {"cp=2 pp=4 schedule=zero_bubble overlap=on micro_batch=2"},
    {"dp=2 tp=2 pp=2 schedule=zero_bubble sequence_parallel=true zero_stage=1 overlap=on micro_batch=2"},
    // With samples that are empty: one of nine, four of twelve, two of ten, four of twelve in halves.
    {"dp=3 micro_batch=1 pad_batch=true"},
    {"dp=3 zero_stage=1 micro_batch=2 pad_batch=true"},
    {"dp=5 pp=2 micro_batch=1 pad_batch=true"},
    {"dp=3 tp=2 overlap=on micro_batch=4 pad_batch=true"},
    {"dp=3 overlap=on micro_batch=2 pad_batch=true granularity=full"},
    {"micro_batch=3 cp=2 pad_batch=true"},
    {"dp=3 pp=2 virtual_stages=2 micro_batch=1 pad_batch=true"},  // four microbatches, as the schedule wants two at a time
};

// With gradients in shards, and with parameters in shards too.
constexpr MeshCase kShardedLayouts[] = {
    {"dp=2 micro_batch=4"},
    {"dp=2 micro_batch=1"},
    {"dp=4 micro_batch=1"},
    {"dp=4 micro_batch=2 granularity=full"},
    {"dp=2 overlap=on micro_batch=1"},
    {"dp=2 overlap=on micro_batch=4 granularity=selective modules=[\"norm\",\"activation\"]"},
    {"dp=4 overlap=on micro_batch=1"},
    {"dp=4 overlap=on micro_batch=2 granularity=full"},
    {"cp=2 micro_batch=2"},
    {"cp=2 dp=2 micro_batch=2"},
    {"cp=4 micro_batch=1 overlap=on"},
    {"tp=2 dp=2 micro_batch=2"},
    {"tp=2 dp=2 sequence_parallel=true overlap=on micro_batch=2"},
    {"cp=2 dp=2 tp=2 sequence_parallel=true overlap=on micro_batch=1"},
    {"cp=2 overlap=on micro_batch=4"},
    {"tp=2 dp=2 overlap=on micro_batch=4"},
    {"tp=2 dp=2 sequence_parallel=true overlap=on micro_batch=4 granularity=full"},
    {"cp=2 pp=2 overlap=on micro_batch=2 granularity=selective modules=[\"attention\",\"norm\"]"},
    {"dp=2 tp=2 pp=2 virtual_stages=2 overlap=on micro_batch=2"},
    {"dp=2 pp=2 micro_batch=1"},
    {"dp=2 pp=2 virtual_stages=2 overlap=on micro_batch=2"},
    {"dp=2 tp=2 pp=2 micro_batch=1 granularity=full"},
    {"dp=3 micro_batch=1 pad_batch=true"},
    {"dp=3 pp=2 overlap=on micro_batch=2 pad_batch=true"},
};

void CheckLayouts(const char* model) {
  const Trained expected = TrainFor(MakeRecipe(model, {}), 5);
  CHECK(expected.weights != expected.initial);
  for (const MeshCase& layout : kMeshes) {
    INFO(layout.sets);
    CheckEqual(expected, TrainFor(MakeRecipe(model, SetsOf(layout.sets)), 5));
  }
  for (const char* zero : {" zero_stage=2", " zero_stage=3"}) {
    for (const MeshCase& layout : kShardedLayouts) {
      const std::string sets = layout.sets + std::string(zero);
      INFO(sets);
      CheckEqual(expected, TrainFor(MakeRecipe(model, SetsOf(sets)), 5));
    }
  }
}

}  // namespace

TEST_CASE("a GPT-2-like model, with dropout, trains alike in every layout") { CheckLayouts(kGptLike); }

TEST_CASE("a Llama-like model trains alike in every layout") { CheckLayouts(kLlamaLike); }

// Weights are compared too: what differs from one optimizer to the next is what it makes of equal gradients.
TEST_CASE("with SGD both models train alike in a few layouts") {
  for (const char* model : {kGptLike, kLlamaLike}) {
    const Trained expected = TrainFor(MakeRecipe(model, {}, kSgd), 5);
    for (const char* sets :
         {"dp=2 micro_batch=2", "dp=2 zero_stage=1 micro_batch=2", "dp=2 zero_stage=2 micro_batch=2",
          "dp=2 zero_stage=3 micro_batch=2", "tp=2", "pp=2 micro_batch=2",
          "dp=2 tp=2 pp=2 micro_batch=1 sequence_parallel=true zero_stage=1 overlap=on"}) {
      INFO(sets);
      const Trained actual = TrainFor(MakeRecipe(model, SetsOf(sets), kSgd), 5);
      CheckEqual(expected, actual);
      for (size_t p = 0; p < expected.names.size(); ++p) {
        INFO(expected.names[p]);
        double scale = 0;
        const double difference = LargestDifference(expected.weights[p], actual.weights[p], &scale);
        CHECK(difference <= kBound * std::max(scale, 1.0));  // 1: about the largest gradient, clipped
      }
    }
  }
}

TEST_CASE("gradients of weights that are deferred change no bit of 1F1B's") {
  for (const char* model : {kGptLike, kLlamaLike}) {
    for (const char* sets : {"pp=2 micro_batch=1", "pp=4 micro_batch=1 granularity=full",
                             "dp=2 tp=2 pp=2 micro_batch=1 sequence_parallel=true zero_stage=1 overlap=on"}) {
      INFO(sets);
      const Trained one = TrainFor(MakeRecipe(model, SetsOf(sets)), 3);
      const Trained other =
          TrainFor(MakeRecipe(model, SetsOf(std::string(sets) + " schedule=zero_bubble")), 3);
      CHECK(one.losses == other.losses);
      CHECK(one.grad_norms == other.grad_norms);
      CHECK(one.gradients == other.gradients);
      CHECK(one.weights == other.weights);
    }
  }
}

TEST_CASE("parameters in shards, and exchange behind computation, change no bit of gradients in shards") {
  for (const char* model : {kGptLike, kLlamaLike}) {
    for (const char* sets : {"dp=4 micro_batch=1", "dp=2 pp=2 micro_batch=1 granularity=full"}) {
      INFO(sets);
      const Trained one = TrainFor(MakeRecipe(model, SetsOf(sets + std::string(" zero_stage=2"))), 3);
      for (const char* more : {" zero_stage=2 overlap=on", " zero_stage=3", " zero_stage=3 overlap=on"}) {
        INFO(more);
        const Trained other = TrainFor(MakeRecipe(model, SetsOf(std::string(sets) + more)), 3);
        CHECK(one.losses == other.losses);
        CHECK(one.grad_norms == other.grad_norms);
        CHECK(one.gradients == other.gradients);
        CHECK(one.weights == other.weights);
        CHECK(one.evaluations == other.evaluations);
      }
    }
  }
}

// How many sums of the plan are left to their readers, and read directly.
struct LeftSums {
  std::int64_t left = 0, direct = 0;
};
LeftSums LeftSumsOf(const plan::Plan& plan) {
  LeftSums sums;
  for (const plan::Segment& segment : plan.stages[0].segments) {
    for (const plan::Instruction& i : segment.instructions) {
      sums.left += i.LeavesAddition() ? 1 : 0;
      sums.direct += i.LeavesAddition() && i.direct() ? 1 : 0;
    }
  }
  return sums;
}

TEST_CASE("sums are added up by their exchange where they are traced or generation is to have their bits") {
  const state::Device device = PushingDevice();
  const auto sums_of = [&](const std::vector<std::string>& more) {
    std::vector<std::string> sets = SetsOf("tp=2");
    sets.insert(sets.end(), more.begin(), more.end());
    const auto plan = driver::CompileRecipe(MakeRecipe(kLlamaLike, sets), {.profile = device.profile});
    REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
    return LeftSumsOf(*plan);
  };
  CHECK(sums_of({}).direct >= 8);
  CHECK(sums_of({"guard.rerun=true", "guard.trace=true", "checkpoint.interval=2"}).left == 0);
  CHECK(sums_of({"generate.invariant=true"}).left == 0);
}

TEST_CASE("where a device adds up few ranks in one order, generation of the same bits asks for it of more") {
  state::Device device = PushingDevice();
  const auto sums_in_order = [&](const std::string& layout, const std::string& more) {
    std::vector<std::string> sets = SetsOf(layout);
    sets.insert(sets.end(), {"model.attention.kv_heads=4", more});
    const auto plan = driver::CompileRecipe(MakeRecipe(kLlamaLike, sets), {.profile = device.profile});
    REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
    int in_order = 0;
    int others = 0;
    for (const plan::StagePlan& stage : plan->stages) {
      for (const plan::Segment& segment : stage.segments) {
        for (const plan::Instruction& i : segment.instructions) {
          const bool sums = i.AsConversion() != nullptr && i.reduction() == graph::Reduction::kSum &&
                            (i.collective() == plan::Collective::kAllReduce ||
                             i.collective() == plan::Collective::kReduceScatter);
          if (sums) ++(i.AddsInOrder() ? in_order : others);
          CHECK((sums || !i.AddsInOrder()));
        }
      }
    }
    return std::pair(in_order, others);
  };
  const std::pair<int, int> any = sums_in_order("tp=4", "generate.invariant=true");
  CHECK(any.first == 0);
  device.profile.ordered_ranks = 2;
  CHECK(sums_in_order("tp=2", "generate.invariant=true").first == 0);
  CHECK(sums_in_order("tp=4", "generate.invariant=false").first == 0);
  CHECK(sums_in_order("tp=4", "generate.invariant=true") == std::pair(any.second, 0));
  CHECK(any.second > 0);
}

TEST_CASE("sums that are left to their readers have the bits of those that are not") {
  for (const char* model : {kGptLike, kLlamaLike}) {
    for (const char* sets :
         {"tp=2", "tp=2 exchange=push", "tp=2 overlap=on micro_batch=4", "tp=2 sequence_parallel=true",
          "tp=2 sequence_parallel=true exchange=push", "tp=2 pp=2 sequence_parallel=true micro_batch=2",
          "cp=2 tp=2 sequence_parallel=true micro_batch=2",
          "tp=2 sequence_parallel=true overlap=on micro_batch=8",
          "tp=2 pp=2 schedule=zero_bubble sequence_parallel=true micro_batch=2",
          "dp=2 tp=2 sequence_parallel=true zero_stage=1 overlap=on micro_batch=4"}) {
      INFO(std::string(model == kGptLike ? "GPT " : "Llama ") << std::string(sets));
      const recipe::Recipe recipe = MakeRecipe(model, SetsOf(sets));
      const state::Device device = PushingDevice();
      const auto plan = driver::CompileRecipe(recipe, {.profile = device.profile});
      REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
      const auto [left, direct] = LeftSumsOf(*plan);
      CHECK(left >= 8);
      // Behind halves nothing is read directly; evaluation has none.
      if (recipe.parallelism.exchange == "push") {
        CHECK(direct == 0);
      } else if (plan->halves == 1) {
        CHECK(direct == left);
      } else {
        CHECK((0 < direct && direct < left));
      }
      const Trained one = TrainFor(recipe, 3);
      const Trained other = TrainFor(recipe, 3, device);
      CHECK(one.losses == other.losses);
      CHECK(one.grad_norms == other.grad_norms);
      CHECK(one.gradients == other.gradients);
      CHECK(one.weights == other.weights);
      CHECK(one.evaluations == other.evaluations);
    }
  }
}

TEST_CASE("threads change no bit") {
  const recipe::Recipe recipe = MakeRecipe(kGptLike, {});
  const Trained one = TrainFor(recipe, 3, 1);
  const Trained three = TrainFor(recipe, 3, 3);
  CHECK(one.losses == three.losses);
  CHECK(one.weights == three.weights);
}

}  // namespace engine::train::testing
