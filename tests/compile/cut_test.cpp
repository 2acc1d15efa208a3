#include "engine/compile/cut.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "engine/backend/cuda/profile/profile.h"
#include "tests/graphs/graphs.h"

namespace engine::compile {
namespace {

plan::Plan LadderPlan(const std::vector<std::string>& sets, const std::vector<std::int64_t>& blocks = {}) {
  return plan::TinyPlanOf(plan::Ladder(8), sets, blocks);
}

// "0>1 1>2": the chunks between which a value goes, in order.
std::string WayOf(const plan::Plan& plan, const std::string& name) {
  std::string way;
  for (const plan::Transfer& transfer : plan.transfers) {
    if (plan.values[static_cast<size_t>(transfer.value)].name != name) continue;
    way += (way.empty() ? "" : " ") + std::to_string(transfer.from_chunk) + ">" +
           std::to_string(transfer.to_chunk);
  }
  return way;
}

const plan::PlanParameter& TableOf(const plan::Plan& plan) {
  for (const plan::PlanParameter& parameter : plan.parameters) {
    if (parameter.name == "table") return parameter;
  }
  FAIL("no table");
  return plan.parameters.front();
}

}  // namespace

TEST_CASE(
    "cut: a value that is read several chunks later is relayed by those in between, and so is its gradient") {
  const plan::Plan plan = LadderPlan({"parallelism.pp=4"}, {2, 3, 2, 1});
  // Training's, then evaluation's.
  CHECK(WayOf(plan, "blocks.0.residual") == "0>1 1>2 2>3 0>1 1>2 2>3");
  CHECK(WayOf(plan, "blocks.1.residual") == "0>1 0>1");
  CHECK(WayOf(plan, "d_final_norm") == "3>2 2>1 1>0");
  for (const plan::Transfer& transfer : plan.transfers)
    CHECK(std::abs(transfer.to_chunk - transfer.from_chunk) == 1);
}

TEST_CASE("cut: a chunk in between sends a value from where it has received it") {
  const plan::Plan plan = LadderPlan({"parallelism.pp=4"});
  std::int64_t relayed = 0;
  for (const plan::StagePlan& stage : plan.stages) {
    for (const plan::Step& send : stage.programs[0]) {
      if (send.kind != plan::StepKind::kSend) continue;
      for (const plan::Step& receive : stage.programs[0]) {
        if (receive.kind != plan::StepKind::kReceive || receive.chunk != send.chunk) continue;
        const std::int32_t value = plan.transfers[static_cast<size_t>(receive.transfer)].value;
        if (plan.transfers[static_cast<size_t>(send.transfer)].value != value) continue;
        CHECK(receive.buffer.offset == send.buffer.offset);
        CHECK(receive.buffer.in_slot == send.buffer.in_slot);
        ++relayed;
      }
    }
  }
  CHECK(relayed > 0);
}

TEST_CASE("cut: all stages that read a parameter hold it, and the first of them owns it") {
  using Holders = std::vector<std::int32_t>;
  CHECK(TableOf(LadderPlan({})).holders == Holders{0});
  CHECK(TableOf(LadderPlan({"parallelism.pp=4"}, {2, 2, 2, 2})).holders == Holders{0, 2, 3});
  CHECK(TableOf(LadderPlan({"parallelism.pp=4"}, {1, 5, 1, 1})).holders == Holders{0, 1, 3});
  CHECK(TableOf(LadderPlan({"parallelism.pp=2", "parallelism.virtual_stages=2"}, {2, 2, 2, 2})).holders ==
        Holders{0, 1});
  const plan::Plan plan = LadderPlan({"parallelism.pp=4"}, {2, 2, 2, 2});
  std::vector<int> copies;
  for (const plan::StagePlan& stage : plan.stages) {
    int tied = 0;
    for (const plan::Bucket& bucket : stage.buckets) {
      if (!bucket.tied()) continue;
      ++tied;
      CHECK(bucket.owned == (&stage == plan.stages.data()));
    }
    int sums = 0;
    for (const plan::Instruction& instruction :
         stage.segments[static_cast<size_t>(stage.update())].instructions) {
      if (!instruction.group().IsTie()) continue;
      CHECK(plan.mesh.NameOf(instruction.group()) == "tie(0, 2, 3)");
      ++sums;
    }
    CHECK(sums == tied);
    copies.push_back(tied);
  }
  CHECK(copies == std::vector<int>{1, 0, 1, 1});
}

TEST_CASE(
    "cut: an encoder's states are relayed to every chunk with cross attention, forward alone and once") {
  const plan::Plan plan = plan::TinyPlanOf(plan::EncoderDecoder(3, 3), {"parallelism.pp=4"}, {3, 1, 1, 1});
  CHECK(WayOf(plan, "encoder.norm") == "0>1 1>2 2>3 0>1 1>2 2>3");
  using Holders = std::vector<std::int32_t>;
  CHECK(TableOf(plan).holders == Holders{0, 1, 3});
  const plan::Plan inner = plan::TinyPlanOf(plan::EncoderDecoder(3, 3), {"parallelism.pp=3"}, {1, 3, 2});
  CHECK(WayOf(inner, "encoder.norm") == "1>2 1>2");
  CHECK(TableOf(inner).holders == Holders{0, 1, 2});
}

TEST_CASE("kernels: a plan for a device without a kernel for a graph's ops is refused") {
  const recipe::Recipe recipe = plan::TinyRecipe(true, {});
  const plan::DeviceProfile cuda = backend::cuda::CudaProfile();
  const absl::StatusOr<plan::Plan> encoder = plan::PlanOfGraph(recipe, plan::Encoder(2), cuda);
  CHECK(Message(encoder.status()) ==
        "class.token (select_token): the cuda executor has no kernel for select_token; the cpu executor has");
  CHECK(plan::PlanOfGraph(recipe, plan::Ladder(2), cuda).ok());
  CHECK(plan::PlanOfGraph(recipe, plan::Encoder(2)).ok());
}

}  // namespace engine::compile
