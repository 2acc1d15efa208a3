// Broken plans: halves of microbatches in turns, and what is made of both at once.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "engine/ops/ops.h"
#include "tests/verify/mutations.h"

namespace engine::verify {
namespace {

using Change = std::function<void(plan::Instruction&)>;

bool IsOfBoth(const plan::Instruction& i) { return i.half == plan::Half::kBoth && i.op() != nullptr; }

// Puts the wanted instruction where `to` says, of the list without it.
std::function<void(plan::Plan&)> Move(const std::string& segment, const Wanted& wanted,
                                      const std::function<size_t(const plan::Segment&)>& to) {
  return [=](plan::Plan& plan) {
    plan::Segment& of = SegmentOf(plan, 0, segment);
    const size_t at = Find(of, wanted);
    const plan::Instruction moved = of.instructions[at];
    of.instructions.erase(of.instructions.begin() + static_cast<std::ptrdiff_t>(at));
    const size_t before = to(of);
    of.instructions.insert(of.instructions.begin() + static_cast<std::ptrdiff_t>(before), moved);
    // Of what lies between, places in the list are others.
    for (plan::Instruction& i : of.instructions) {
      for (std::int32_t& wait : i.waits) {
        const auto w = static_cast<size_t>(wait);
        if (w > at && w <= before) --wait;
        if (w < at && w >= before) ++wait;
      }
    }
  };
}

}  // namespace

TEST_CASE("mutation: the plan with halves in turns is good") {
  CHECK_MESSAGE(Verify(Overlapped(), {}).ok(), Message(Verify(Overlapped(), {})));
  CHECK(Overlapped().halves == 2);
  CHECK(Overlapped().microbatches == 4);
}

TEST_CASE("mutation: halves in turns") {
  Mutate(Overlapped(), "t", "no first half in its slot", [&](plan::Plan& plan) {
    for (plan::Step& step : plan.stages[0].programs[0]) step.slot += step.slot >= 0 ? 1 : 0;
  });
  Mutate(Overlapped(), "t", "no first half in its slot", [&](plan::Plan& plan) {
    for (plan::Step& step : plan.stages[0].programs[0]) step.microbatch += step.microbatch == 2 ? 1 : 0;
  });
  const auto exchange = [](const plan::Instruction& i) {
    return i.collective() == plan::Collective::kAllGather;
  };
  const auto computes = [](const plan::Instruction& i) {
    return i.op() != nullptr && !i.outputs[0].in_slot && i.outputs[0].value >= 0;
  };
  const auto edit = [](const Wanted& which, const Change& change) {
    return Edit("forward.0", which, change);
  };
  Mutate(Overlapped(), "sm", "is on stream 0, not 5",
         edit(exchange, [](plan::Instruction& i) { i.stream = plan::kComputeStream; }));
  Mutate(Overlapped(), "sm", "is on stream 6, not 5",
         edit(exchange, [](plan::Instruction& i) { i.stream = plan::kBucketStream; }));
  Mutate(Overlapped(), "s", "is on stream 5, not 0",
         edit(computes, [](plan::Instruction& i) { i.stream = plan::kExchangeStream; }));
  Mutate(Overlapped(), "s", "reaches out of the transients",
         [&](plan::Plan& plan) { plan.stages[0].pass_bytes /= 2; });
  Mutate(Overlapped(), "s", "overlap slots of chunk 0",
         [&](plan::Plan& plan) { plan.stages[0].transient_base -= 256; });
  Mutate(Overlapped(), "sg", "of the second",
         [&](plan::Plan& plan) { Drop(SegmentOf(plan, 0, "forward.0"), "linear", 1); });
  Mutate(Overlapped(), "sg", "is of one half alone",
         [&](plan::Plan& plan) { SegmentOf(plan, 0, "forward.0").instructions.pop_back(); });
  Mutate(Overlapped(), "s", "of the second",
         [&](plan::Plan& plan) { At(plan, 0, "forward.0", "linear").name = "another"; });
  Mutate(Overlapped(), "s", "runs whole microbatches, the plan cuts microbatches into halves",
         [&](plan::Plan& plan) { SegmentOf(plan, 0, "forward.0").halves = false; });
  Mutate(Overlapped(), "s", "is of a second half",
         [&](plan::Plan& plan) { At(plan, 0, "evaluate.0", "linear").half = plan::Half::kSecond; });
}

TEST_CASE("mutation: what a half has exchanged is waited for") {
  const auto waits = [](const plan::Instruction& i) { return !i.waits.empty(); };
  for (const char* segment : {"forward.0", "backward.0"}) {
    Mutate(Overlapped(), "s", "it does not wait for that",
           Edit(segment, waits, [](plan::Instruction& i) { i.waits.clear(); }));
    Mutate(Overlapped(), "s", "which is no conversion under way",
           Edit(segment, waits, [](plan::Instruction& i) { i.waits.push_back(i.waits[0]); }));
    Mutate(Overlapped(), "s", "which is no conversion under way",
           Edit(segment, waits, [](plan::Instruction& i) { i.waits[0] = 0; }));
  }
  // The other half writes where an exchange that is under way reads.
  Mutate(Overlapped(), "s", "it does not wait for that", [](plan::Plan& plan) {
    plan::Segment& forward = SegmentOf(plan, 0, "forward.0");
    const size_t at = Find(forward, [](const plan::Instruction& i) {
      return i.AsConversion() != nullptr && i.half == plan::Half::kFirst && !i.inputs[0].in_slot;
    });
    const std::int64_t used = forward.instructions[at].inputs[0].offset;
    for (size_t i = at + 1; i < forward.instructions.size(); ++i) {
      plan::Instruction& next = forward.instructions[i];
      if (next.AsKernel() == nullptr || next.half != plan::Half::kSecond) continue;
      REQUIRE(next.waits.empty());
      next.scratch = {.offset = used, .elements = 256, .dtype = DType::kU8};
      return;
    }
    FAIL("nothing runs beside the exchange");
  });
}

TEST_CASE("mutation: halves in turns in a pipeline") {
  const plan::Plan good =
      plan::TinyPlan(false, {"parallelism.tp=2", "parallelism.pp=2", "parallelism.sequence_parallel=true",
                             "parallelism.overlap=on", "training.micro_batch=4"});
  REQUIRE_MESSAGE(Verify(good, {}).ok(), Message(Verify(good, {})));
  REQUIRE(good.halves == 2);
  const auto each = [](plan::StepKind kind, std::int32_t half,
                       const std::function<void(plan::Plan&, plan::Step&)>& edit) {
    return [=](plan::Plan& plan) {
      for (plan::Step& step : plan.stages[0].programs[0]) {
        if (step.kind == kind && step.microbatch % 2 == half) edit(plan, step);
      }
    };
  };
  const auto is_sent = [](const plan::Plan& plan, std::int32_t wait) {
    const plan::Step& step = plan.stages[0].programs[0][static_cast<size_t>(wait)];
    return step.kind == plan::StepKind::kSend && step.microbatch % 2 == 1;
  };
  // The second half's value is sent from where the first's is.
  Mutate(good, "s", "overlaps", [&](plan::Plan& plan) {
    const plan::BufferRef first =
        plan.stages[0].programs[0][FindStep(plan.stages[0].programs[0], plan::StepKind::kSend)].buffer;
    each(plan::StepKind::kSend, 1, [&](plan::Plan&, plan::Step& step) { step.buffer = first; })(plan);
  });
  Mutate(good, "s", "other microbatches of this transfer", [](plan::Plan& plan) {
    plan::Program& program = plan.stages[0].programs[0];
    program[FindStep(program, plan::StepKind::kSend)].buffer.offset += 256;
  });
  // A pair of halves that are not one microbatch's.
  Mutate(good, "t", "no first half in its slot", [](plan::Plan& plan) {
    for (plan::Step& step : plan.stages[0].programs[0]) {
      if (step.kind == plan::StepKind::kRun && step.microbatch >= 0) step.microbatch ^= 1;
    }
  });
  Mutate(good, "t", "overwrites the buffer that",
         each(plan::StepKind::kRun, 0, [&](plan::Plan& plan, plan::Step& step) {
           std::erase_if(step.waits, [&](std::int32_t wait) { return is_sent(plan, wait); });
         }));
  Mutate(good, "t", "which writes what it sends",
         each(plan::StepKind::kSend, 0, [](plan::Plan&, plan::Step& step) { step.waits.clear(); }));
  Mutate(good, "t", "and does not wait for it",
         each(plan::StepKind::kReceive, 0, [](plan::Plan&, plan::Step& step) { step.waits.clear(); }));
}

TEST_CASE("gradients in shards that cannot be made of both halves at once are made of whole microbatches") {
  for (const char* stage : {"parallelism.zero_stage=1", "parallelism.zero_stage=2"}) {
    // Three tokens of 32 features: no multiple of what the halves' values are aligned to.
    const plan::Plan plan =
        plan::TinyPlan(false, {"parallelism.dp=2", "parallelism.tp=2", stage, "data.sequence_length=3",
                               "parallelism.overlap=on", "training.micro_batch=2"});
    CHECK(Verify(plan, {}).ok());
    const bool whole = stage == std::string("parallelism.zero_stage=2");
    CHECK(plan.halves == (whole ? 1 : 2));
    const bool said = std::any_of(plan.notes.begin(), plan.notes.end(), [](const std::string& note) {
      return note.find("half by half") != std::string::npos;
    });
    CHECK(said == whole);
  }
}

TEST_CASE("mutation: shards that are gathered and summed once for both halves") {
  const plan::Plan good =
      plan::TinyPlan(false, {"parallelism.dp=2", "parallelism.tp=2", "parallelism.zero_stage=3",
                             "parallelism.overlap=on", "training.micro_batch=4"});
  REQUIRE_MESSAGE(Verify(good, {}).ok(), Message(Verify(good, {})));
  REQUIRE(good.halves == 2);
  const auto alone = [](const char* segment, const Wanted& which) {
    return Edit(segment, which, [](plan::Instruction& i) { i.half = plan::Half::kFirst; });
  };
  const auto kernel = [](const char* name) {
    return [=](const plan::Instruction& i) { return i.kernel() == name && i.half == plan::Half::kBoth; };
  };
  for (const char* name : {"copy", "all_gather"}) {
    Mutate(good, "zs", "runs once for each half", alone("forward.0", kernel(name)));
  }
  for (const char* name : {"reduce_scatter", "add_shard"}) {
    Mutate(good, "zs", "runs once for each half", alone("backward.0", [=](const plan::Instruction& i) {
             return i.kernel() == name && !i.last_only();
           }));
  }
  Mutate(good, "zs", "runs once for both halves",
         [](plan::Plan& plan) { At(plan, 0, "evaluate.0", "copy").half = plan::Half::kBoth; });
  // The first half does not wait for what is gathered for both.
  Mutate(good, "z", "of which nothing is under way",
         Move("forward.0", kernel("all_gather"),
              [](const plan::Segment& of) { return Find(of, "linear") + 1; }));
}

TEST_CASE("mutation: gradients of weights, of both halves at once") {
  const auto first = [&](const Change& change) { return Edit("backward.0", IsOfBoth, change); };
  const auto reads_alone = [](const plan::Instruction& i) { return IsOfBoth(i) && i.waits.empty(); };
  // Before the halves have made what it reads; and behind what overwrites that.
  Mutate(Overlapped(), "s", "reads",
         Move("backward.0", IsOfBoth, [](const plan::Segment&) { return size_t{0}; }));
  Mutate(Overlapped(), "s", "whose bytes hold what",
         Move("backward.0", reads_alone, [](const plan::Segment& of) { return of.instructions.size(); }));
  const plan::Plan shallow = plan::TinyPlan(
      false, {"model.layers=1", "parallelism.tp=2", "parallelism.overlap=on", "training.micro_batch=4"});
  // The head's product, of both, behind what the halves add to the same weights.
  Mutate(shallow, "g", "adds to the gradient of the iteration before",
         Move("backward.0", IsOfBoth, [](const plan::Segment& of) { return of.instructions.size(); }));
  Mutate(Overlapped(), "sp", "is not a sum over the rows of both halves",
         first([](plan::Instruction& i) { i.AsKernel()->op = ops::FindOp("linear"); }));
  Mutate(Overlapped(), "s", "on a rank, its buffer",
         first([](plan::Instruction& i) { i.inputs[0].elements /= 2; }));
  Mutate(Overlapped(), "s", "reads", first([](plan::Instruction& i) { i.inputs[0].offset += 256; }));
  Mutate(Overlapped(), "s", "reaches out of the transients", first([](plan::Instruction& i) {
           i.scratch = {.offset = 0, .elements = 256, .dtype = DType::kU8};
         }));
  Mutate(Overlapped(), "s", "its scratch at", [](plan::Plan& plan) {
    plan::Segment& of = SegmentOf(plan, 0, "backward.0");
    plan::Instruction& i = of.instructions[Find(
        of, [](const plan::Instruction& both) { return IsOfBoth(both) && !both.inputs[0].in_slot; })];
    i.scratch = {.offset = i.inputs[0].offset, .elements = 256, .dtype = DType::kU8};
  });
}

}  // namespace engine::verify
