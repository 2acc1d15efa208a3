// Values that go over several chunks, and parameters that several stages hold: good plans of many layouts, and broken
// ones. The graph is tests/graphs/graphs.h's ladder.
#include <sstream>
#include <string>

#include "engine/backend/cuda/profile/profile.h"
#include "engine/verify/text.h"
#include "tests/graphs/graphs.h"
#include "tests/verify/mutations.h"

namespace engine::verify {
namespace {

// --set's of blank-separated keys of [parallelism].
std::vector<std::string> SetsOf(const std::string& layout) {
  std::vector<std::string> sets;
  std::istringstream words(layout);
  for (std::string word; words >> word;) sets.push_back("parallelism." + word);
  return sets;
}

plan::Plan LadderPlan(const std::vector<std::string>& sets, const std::vector<std::int64_t>& blocks = {}) {
  return plan::TinyPlanOf(plan::Ladder(8), sets, blocks);
}

const plan::Plan& Relays() {
  static const plan::Plan plan = LadderPlan({"parallelism.pp=4", "parallelism.dp=2"}, {2, 2, 2, 2});
  return plan;
}

// The nth step of a stage's training program that sends or receives a value.
size_t StepOf(const plan::Plan& plan, size_t stage, plan::StepKind kind, const std::string& value,
              int nth = 0) {
  const plan::Program& program = plan.stages[stage].programs[0];
  for (size_t i = 0; i < program.size(); ++i) {
    if (program[i].kind != kind) continue;
    const plan::Transfer& transfer = plan.transfers[static_cast<size_t>(program[i].transfer)];
    if (plan.values[static_cast<size_t>(transfer.value)].name == value && nth-- == 0) return i;
  }
  FAIL("no such step");
  return 0;
}

constexpr const char* kForward = "blocks.0.residual";
constexpr const char* kBackward = "d_final_norm";

}  // namespace

TEST_CASE("verify: good plans of relays and of parameters that several stages hold") {
  for (const char* layout :
       {"pp=2", "pp=4", "pp=8", "pp=4 tp=2", "pp=4 dp=2 zero_stage=1", "pp=4 dp=2 zero_stage=3 overlap=on",
        "pp=2 virtual_stages=2", "pp=2 virtual_stages=4", "pp=4 virtual_stages=2 cp=2",
        "pp=4 schedule=zero_bubble", "pp=8 schedule=zero_bubble dp=2 zero_stage=1",
        "pp=4 tp=2 sequence_parallel=true"}) {
    CAPTURE(std::string(layout));
    const absl::Status status = Verify(LadderPlan(SetsOf(layout)), {});
    CHECK_MESSAGE(status.ok(), Message(status));
  }
}

TEST_CASE("verify: good plans of an encoder, and of an encoder with a decoder") {
  struct Layout {
    std::vector<std::string> sets;
    std::vector<std::int64_t> blocks;
  };
  const Layout layouts[] = {{{}, {}},
                            {{"parallelism.pp=2"}, {2, 4}},
                            {{"parallelism.pp=3"}, {1, 3, 2}},
                            {{"parallelism.pp=4", "parallelism.schedule=zero_bubble"}, {3, 1, 1, 1}},
                            {{"parallelism.pp=2", "parallelism.virtual_stages=2"}, {3, 1, 1, 1}},
                            {{"parallelism.tp=2", "parallelism.sequence_parallel=true"}, {}},
                            {{"parallelism.cp=2", "parallelism.dp=2"}, {}},
                            {{"parallelism.cp=4", "parallelism.tp=2"}, {}}};
  for (const Layout& layout : layouts) {
    for (const plan::GraphModel& model : {plan::Encoder(6), plan::EncoderDecoder(3, 3)}) {
      const absl::Status status = Verify(plan::TinyPlanOf(model, layout.sets, layout.blocks), {});
      CHECK_MESSAGE(status.ok(), Message(status));
    }
  }
}

TEST_CASE("verify: good plans of relays with a GPU's fused kernels, pushes and halves") {
  for (const char* layout :
       {"pp=4", "pp=4 schedule=zero_bubble", "tp=2 pp=4 overlap=on", "pp=2 virtual_stages=4 dp=2"}) {
    CAPTURE(std::string(layout));
    std::vector<std::string> sets = SetsOf(layout);
    sets.emplace_back("training.micro_batch=2");
    const absl::StatusOr<plan::Plan> plan =
        plan::PlanOfGraph(plan::TinyRecipe(true, sets), plan::Ladder(8), backend::cuda::CudaProfile());
    REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
    const absl::Status status = Verify(*plan, {});
    CHECK_MESSAGE(status.ok(), Message(status));
  }
}

TEST_CASE("mutation: a value comes to a chunk by its neighbours, and once") {
  Mutate(Relays(), "mst", "goes from chunk 0 to chunk 2, which is no neighbour", [](plan::Plan& plan) {
    const size_t hop = StepOf(plan, 1, plan::StepKind::kSend, kForward);
    plan.transfers[static_cast<size_t>(plan.stages[1].programs[0][hop].transfer)].from_chunk = 0;
  });
}

TEST_CASE("mutation: what is relayed is the value that was received, while it is there") {
  // Sent from other bytes.
  Mutate(Relays(), "s", "overlap send buffer of blocks.0.residual", [](plan::Plan& plan) {
    plan::StagePlan& stage = plan.stages[1];
    for (plan::Step& step : stage.programs[0]) {
      if (step.kind != plan::StepKind::kSend) continue;
      const std::int32_t value = plan.transfers[static_cast<size_t>(step.transfer)].value;
      if (NameOf(plan, value) == kForward) step.buffer.offset = stage.transient_base;
    }
  });
  // The next microbatch's arrives before this one's is sent.
  Mutate(Relays(), "t", "and does not wait for it", [](plan::Plan& plan) {
    plan.stages[1].programs[0][StepOf(plan, 1, plan::StepKind::kReceive, kForward, 1)].waits.clear();
  });
  Mutate(Relays(), "t", "and does not wait for it", [](plan::Plan& plan) {
    plan.stages[2].programs[0][StepOf(plan, 2, plan::StepKind::kReceive, kBackward, 1)].waits.clear();
  });
}

TEST_CASE("mutation: what is sent from a slot stays there until it is sent") {
  // The second chunk makes the encoder's states, keeps them for its own backward pass, and sends them to the third.
  const plan::Plan good = plan::TinyPlanOf(plan::EncoderDecoder(3, 3), {"parallelism.pp=3"}, {1, 3, 2});
  REQUIRE(good.stages[1].programs[0][StepOf(good, 1, plan::StepKind::kSend, "encoder.norm")].buffer.in_slot);
  Mutate(good, "t", "may overwrite encoder.norm in its slot before it is sent", [](plan::Plan& plan) {
    const auto send = static_cast<std::int32_t>(StepOf(plan, 1, plan::StepKind::kSend, "encoder.norm"));
    for (plan::Step& step : plan.stages[1].programs[0]) std::erase(step.waits, send);
  });
}

TEST_CASE("mutation: holders of a tied parameter") {
  const auto table = [](plan::Plan& plan) -> plan::PlanParameter& {
    for (plan::PlanParameter& parameter : plan.parameters) {
      if (parameter.tied()) return parameter;
    }
    return plan.parameters.front();
  };
  const auto tie = [](plan::Plan& plan, size_t stage) -> plan::Instruction& {
    for (plan::Instruction& instruction : SegmentOf(plan, stage, "update").instructions) {
      if (instruction.group().IsTie()) return instruction;
    }
    FAIL("no tie");
    return plan.stages[stage].segments[0].instructions[0];
  };
  const auto holders = [](plan::Plan& plan, size_t stage) -> std::vector<std::int32_t>& {
    for (plan::Bucket& bucket : plan.stages[stage].buckets) {
      if (bucket.tied()) return bucket.holders;
    }
    FAIL("no tied bucket");
    return plan.stages[stage].buckets[0].holders;
  };
  REQUIRE(plan::Plan(Relays()).stages.size() == 4);
  // One holder is left out everywhere but on itself.
  Mutate(Relays(), "cg", "table is read by stages 0, 2, 3, held by 0, 2, 3 and tied over 0, 3",
         [&](plan::Plan& plan) {
           table(plan).holders = {0, 3};
           for (const size_t stage : {0, 2, 3}) holders(plan, stage) = {0, 3};
           for (const size_t stage : {0, 3}) {
             plan::Instruction& sum = tie(plan, stage);
             sum.AsBucketExchange()->group = plan::Group::OfHolders({0, 3});
             sum.AsExchange()->wire_bytes =
                 plan::WireBytes(sum.collective(), sum.inputs[0].bytes(), sum.outputs[0].bytes(), 2);
           }
           plan::Segment& update = SegmentOf(plan, 2, "update");
           Drop(update, "all_reduce", 0);
         });
  Mutate(Relays(), "cg", "table is owned by stage 2, but first read on stage 0", [&](plan::Plan& plan) {
    for (const size_t stage : {0, 2}) {
      for (plan::Bucket& bucket : plan.stages[stage].buckets) {
        if (bucket.tied()) bucket.owned = stage == 2;
      }
    }
  });
  // The sum goes over other stages than those of the copies.
  Mutate(Relays(), "gm", "over the tie, but its copies are the tie(0, 2, 3)'s", [&](plan::Plan& plan) {
    tie(plan, 0).AsBucketExchange()->group = plan::Group::OfHolders({0, 3});
  });
  Mutate(Relays(), "mg", "stage 0 is not one of its holders, 2, 3", [&](plan::Plan& plan) {
    tie(plan, 0).AsBucketExchange()->group = plan::Group::OfHolders({2, 3});
  });
}

TEST_CASE("mutation: chunks of one stage that add to one gradient") {
  static const plan::Plan good =
      LadderPlan({"parallelism.pp=2", "parallelism.virtual_stages=2"}, {2, 2, 2, 2});
  // The table's gradient is made by chunk 2's lookup before chunk 0's, which must not overwrite it.
  Mutate(good, "g", "overwrites a sum, which is not the gradient of the iteration before",
         [](plan::Plan& plan) {
           plan::Instruction& lookup = At(plan, 0, "backward.0", "embedding_grad");
           lookup.AsKernel()->fresh = 1;
         });
  Mutate(good, "g", "adds to the gradient of the iteration before",
         [](plan::Plan& plan) { At(plan, 0, "backward.2", "embedding_grad").AsKernel()->fresh = 0; });
}

}  // namespace engine::verify
