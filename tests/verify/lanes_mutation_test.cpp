// Broken plans: halves of microbatches in turns, and what is made of both at once.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "engine/ops/ops.h"
#include "tests/verify/mutations.h"

namespace engine::verify {

TEST_CASE("mutation: the plan with halves in turns is good") {
  CHECK(Verify(Overlapped(), {}).ok());
  CHECK(Overlapped().lanes == 2);
  CHECK(Overlapped().microbatches == 4);
}

TEST_CASE("mutation: halves in turns") {
  const auto paired = [](plan::Plan& plan) {
    plan::Program& program = plan.stages[0].programs[0];
    return std::find_if(program.begin(), program.end(), [](const plan::Step& step) { return step.paired; }) -
           program.begin();
  };
  Mutate(Overlapped(), "t", "not in the slots of both lanes", [&](plan::Plan& plan) {
    for (plan::Step& step : plan.stages[0].programs[0]) {
      if (step.microbatch == 1) step.slot = 0;
    }
  });
  // Slots 1 and 2, one of each of two pairs of slots.
  Mutate(Overlapped(), "ts", "not in the slots of both lanes", [&](plan::Plan& plan) {
    plan.stages[0].chunks[0].slots += 2;
    for (plan::Step& step : plan.stages[0].programs[0]) step.slot += step.slot >= 0 ? 1 : 0;
  });
  Mutate(Overlapped(), "t", "cannot run in alternation with", [&](plan::Plan& plan) {
    plan.stages[0].programs[0][static_cast<size_t>(paired(plan)) + 1].paired = true;
  });
  Mutate(Overlapped(), "t", "cannot run in alternation with", [&](plan::Plan& plan) {
    const auto i = static_cast<size_t>(paired(plan));
    plan.stages[0].programs[0][i + 1].waits = {static_cast<std::int32_t>(i)};
  });
  const auto exchange = [](const plan::Instruction& i) {
    return i.collective == plan::Collective::kAllGather;
  };
  const auto computes = [](const plan::Instruction& i) {
    return i.op != nullptr && i.outputs[0].in_lane && i.outputs[0].value >= 0;
  };
  const auto edit = [](const auto& which, const std::function<void(plan::Instruction&)>& change) {
    return Edit("forward.0", which, change);
  };
  Mutate(Overlapped(), "sm", "is on stream 0, not 5",
         edit(exchange, [](plan::Instruction& i) { i.stream = plan::kComputeStream; }));
  Mutate(Overlapped(), "sm", "is on stream 6, not 5",
         edit(exchange, [](plan::Instruction& i) { i.stream = plan::kBucketStream; }));
  Mutate(Overlapped(), "s", "is on stream 5, not 0",
         edit(computes, [](plan::Instruction& i) { i.stream = plan::kExchangeStream; }));
  Mutate(Overlapped(), "s", "is waited for by nothing",
         edit(exchange, [](plan::Instruction& i) { i.detached = true; }));
  Mutate(Overlapped(), "s", "is not in a lane",
         edit(computes, [](plan::Instruction& i) { i.outputs[0].in_lane = false; }));
  Mutate(Overlapped(), "s", "reaches out of its lane",
         [&](plan::Plan& plan) { plan.stages[0].lane_bytes /= 2; });
  Mutate(Overlapped(), "s", "overlap slots of chunk 0",
         [&](plan::Plan& plan) { plan.stages[0].lane_base -= 256; });
  Mutate(Overlapped(), "s", "has no instruction left",
         [&](plan::Plan& plan) { SegmentOf(plan, 0, "forward.0").order.push_back(0); });
  Mutate(Overlapped(), "s", "lane 1 before #164",
         [&](plan::Plan& plan) { SegmentOf(plan, 0, "forward.0").order.pop_back(); });
  Mutate(Overlapped(), "s", "runs in lane 1 before lane 0", [&](plan::Plan& plan) {
    for (std::uint8_t& lane : SegmentOf(plan, 0, "backward.0").order)
      lane = lane == plan::kJointLane ? lane : 1 - lane;
  });
  Mutate(Overlapped(), "st", "lanes at", [&](plan::Plan& plan) { plan.lanes = 1 << 20; });
}

TEST_CASE("mutation: halves in turns in a pipeline") {
  const plan::Plan good =
      plan::TinyPlan(false, {"parallelism.tp=2", "parallelism.pp=2", "parallelism.sequence_parallel=true",
                             "parallelism.overlap=on", "training.micro_batch=4"});
  REQUIRE(Verify(good, {}).ok());
  REQUIRE(good.lanes == 2);
  const auto each = [](plan::StepKind kind, std::int32_t lane,
                       const std::function<void(plan::Plan&, plan::Step&)>& edit) {
    return [=](plan::Plan& plan) {
      for (plan::Step& step : plan.stages[0].programs[0]) {
        if (step.kind == kind && step.microbatch % 2 == lane) edit(plan, step);
      }
    };
  };
  const auto is_sent = [](const plan::Plan& plan, std::int32_t wait) {
    const plan::Step& step = plan.stages[0].programs[0][static_cast<size_t>(wait)];
    return step.kind == plan::StepKind::kSend && step.microbatch % 2 == 1;
  };
  Mutate(good, "s", "bytes apart for 2 lanes", [](plan::Plan& plan) {
    for (plan::Step& step : plan.stages[0].programs[0]) {
      if (step.kind == plan::StepKind::kSend) step.buffer.lane_stride = 0;
    }
  });
  Mutate(good, "s", "uses the buffer of lane 0",
         each(plan::StepKind::kSend, 1, [](plan::Plan&, plan::Step& step) { step.slot = 0; }));
  Mutate(good, "s", "uses the buffer of lane 1",
         each(plan::StepKind::kReceive, 0, [](plan::Plan&, plan::Step& step) { step.slot = 1; }));
  // What arrives for the backward pass, where lane 1 keeps what it sends.
  Mutate(good, "s", "overlaps", [](plan::Plan& plan) {
    plan::Program& program = plan.stages[0].programs[0];
    const plan::BufferRef sent = program[FindStep(program, plan::StepKind::kSend)].buffer;
    const plan::BufferRef received = program[FindStep(program, plan::StepKind::kReceive)].buffer;
    const std::int64_t by = received.offset - sent.offset - sent.lane_stride;
    for (plan::Step& step : program) {
      if (step.kind == plan::StepKind::kReceive) step.buffer.offset -= by;
    }
    for (plan::Instruction& instruction : SegmentOf(plan, 0, "backward.0").instructions) {
      for (plan::BufferRef& input : instruction.inputs)
        input.offset -= input.value == received.value ? by : 0;
    }
  });
  // Halves in each other's slots; and one that runs alone.
  Mutate(good, "t", "runs in alternation with the next", [](plan::Plan& plan) {
    for (plan::Step& step : plan.stages[0].programs[0]) {
      if (step.kind == plan::StepKind::kRun && (step.microbatch == 2 || step.microbatch == 3))
        step.microbatch ^= 1;
    }
  });
  Mutate(good, "t", "does not run in alternation", [](plan::Plan& plan) {
    for (plan::Step& step : plan.stages[0].programs[0]) step.paired = step.paired && step.microbatch != 2;
  });
  Mutate(good, "t", "overwrites the buffer that",
         each(plan::StepKind::kRun, 0, [&](plan::Plan& plan, plan::Step& step) {
           std::erase_if(step.waits, [&](std::int32_t wait) { return is_sent(plan, wait); });
         }));
  Mutate(good, "t", "which writes what it sends",
         each(plan::StepKind::kSend, 1, [](plan::Plan&, plan::Step& step) { step.waits.clear(); }));
  Mutate(good, "t", "and does not wait for it",
         each(plan::StepKind::kReceive, 1, [](plan::Plan&, plan::Step& step) { step.waits.clear(); }));
}

TEST_CASE("gradients in shards that cannot be made of both halves at once are made of whole microbatches") {
  for (const char* stage : {"parallelism.zero_stage=1", "parallelism.zero_stage=2"}) {
    // Three tokens of 32 features: no multiple of what the halves' values are aligned to.
    const plan::Plan plan =
        plan::TinyPlan(false, {"parallelism.dp=2", "parallelism.tp=2", stage, "data.sequence_length=3",
                               "parallelism.overlap=on", "training.micro_batch=2"});
    CHECK(Verify(plan, {}).ok());
    const bool whole = stage == std::string("parallelism.zero_stage=2");
    CHECK(plan.lanes == (whole ? 1 : 2));
    const bool said = std::any_of(plan.notes.begin(), plan.notes.end(), [](const std::string& note) {
      return note.find("half by half") != std::string::npos;
    });
    CHECK(said == whole);
  }
}

TEST_CASE("mutation: shards that are gathered and summed once for both lanes") {
  const plan::Plan good =
      plan::TinyPlan(false, {"parallelism.dp=2", "parallelism.tp=2", "parallelism.zero_stage=3",
                             "parallelism.overlap=on", "training.micro_batch=4"});
  REQUIRE(Verify(good, {}).ok());
  REQUIRE(good.lanes == 2);
  const auto alone = [](const char* segment, const std::function<bool(const plan::Instruction&)>& which) {
    return [=](plan::Plan& plan) {
      plan::Segment& of = SegmentOf(plan, 0, segment);
      of.instructions[Find(of, which)].joint = false;
    };
  };
  const auto kernel = [](const char* name) {
    return [=](const plan::Instruction& i) { return i.kernel == name && i.joint; };
  };
  for (const char* name : {"copy", "all_gather"}) {
    Mutate(good, "zs", "runs once for each lane", alone("forward.0", kernel(name)));
  }
  for (const char* name : {"reduce_scatter", "add_shard"}) {
    Mutate(good, "zs", "runs once for each lane",
           alone("backward.0", [=](const plan::Instruction& i) { return i.kernel == name && !i.last_only; }));
  }
  Mutate(good, "zs", "runs once for each lane", alone("backward.0", [](const plan::Instruction& i) {
           return i.op == &ops::kLinearWgrad && i.name.find("layers.1") != std::string::npos;
         }));
  Mutate(good, "zs", "runs once for both lanes", [](plan::Plan& plan) {
    plan::Segment& evaluate = SegmentOf(plan, 0, "evaluate.0");
    evaluate.instructions[Find(evaluate, [](const plan::Instruction& i) { return i.kernel == "copy"; })]
        .joint = true;
  });
  // Waited for by what runs when both have come to it.
  Mutate(good, "z", "when lanes may have gone on", [](plan::Plan& plan) {
    std::vector<plan::Instruction>& backward = SegmentOf(plan, 0, "backward.0").instructions;
    size_t joint = 0;
    for (size_t i = 0; i < backward.size(); ++i) {
      if (backward[i].op != nullptr && backward[i].joint) joint = i;
      if (joint == 0 || backward[i].joint || backward[i].joins.empty()) continue;
      std::swap(backward[joint].joins, backward[i].joins);
      return;
    }
    FAIL("nothing waits behind a joint instruction");
  });
  // Lane 0 does not wait for what is gathered for both.
  Mutate(good, "s", "has brought it", [](plan::Plan& plan) {
    std::vector<std::uint8_t>& order = SegmentOf(plan, 0, "forward.0").order;
    const auto joint = std::find(order.begin(), order.end(), plan::kJointLane);
    REQUIRE(joint != order.end());
    order.erase(joint);
    order.push_back(plan::kJointLane);
  });
}

TEST_CASE("mutation: gradients of weights, of both lanes at once") {
  const auto in_backward = [&](const std::function<void(plan::Segment&)>& change) {
    return [=](plan::Plan& plan) { change(SegmentOf(plan, 0, "backward.0")); };
  };
  const auto joint = [](const plan::Instruction& i) { return i.joint && i.op != nullptr; };
  const auto first = [&](const std::function<void(plan::Instruction&)>& change) {
    return Edit("backward.0", joint, change);
  };
  Mutate(Overlapped(), "s", "runs before both lanes have come to it", in_backward([](plan::Segment& s) {
           std::stable_partition(s.order.begin(), s.order.end(),
                                 [](auto lane) { return lane == plan::kJointLane; });
         }));
  Mutate(Overlapped(), "s", "writes at", in_backward([](plan::Segment& s) {
           std::stable_partition(s.order.begin(), s.order.end(),
                                 [](auto lane) { return lane != plan::kJointLane; });
         }));
  const plan::Plan shallow = plan::TinyPlan(
      false, {"model.layers=1", "parallelism.tp=2", "parallelism.overlap=on", "training.micro_batch=4"});
  Mutate(shallow, "s", "d_embedding.lookup adds to", in_backward([](plan::Segment& s) {
           // The head's product, of both, behind what lane 0 adds to the same weights.
           const auto at = std::find(s.order.begin(), s.order.end(), plan::kJointLane);
           s.order.erase(at);
           s.order.push_back(plan::kJointLane);
         }));
  Mutate(Overlapped(), "s", "both before #", in_backward([](plan::Segment& s) {
           s.order.erase(std::find(s.order.begin(), s.order.end(), plan::kJointLane));
         }));
  Mutate(Overlapped(), "sp", "is not a sum over the rows of both lanes",
         first([](plan::Instruction& i) { i.op = ops::FindOp("linear"); }));
  Mutate(Overlapped(), "s", "where joint instructions have their scratch", in_backward([](plan::Segment& s) {
           const auto reads = [](const plan::Instruction& i) {
             return i.joint && i.op && !i.inputs[0].in_slot;
           };
           plan::Instruction& i = s.instructions[Find(s, reads)];
           i.scratch = {.offset = i.inputs[0].offset, .elements = 256, .dtype = DType::kU8};
         }));
  Mutate(Overlapped(), "s", "bytes from the other's",
         first([](plan::Instruction& i) { i.inputs[0].lane_stride -= 256; }));
  Mutate(Overlapped(), "s", "is not behind the lanes", first([](plan::Instruction& i) {
           i.scratch = {.offset = 0, .elements = 256, .dtype = DType::kU8};
         }));
  Mutate(Overlapped(), "s", "reaches out of its lane",
         [](plan::Plan& plan) { plan.stages[0].joint_bytes /= 2; });
  Mutate(Overlapped(), "s", "bytes from the other's", [&](plan::Plan& plan) {
    plan::Segment& forward = SegmentOf(plan, 0, "forward.0");
    const auto saves = [](const plan::Instruction& i) { return i.outputs[0].in_slot; };
    forward.instructions[Find(forward, saves)].outputs[0].lane_stride = 0;
  });
}

}  // namespace engine::verify
