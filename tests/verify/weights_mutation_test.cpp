// Broken plans: weights passes of their own.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "tests/verify/mutations.h"

namespace engine::verify {

namespace {

// dp 2 · pp 2 with ZeRO-1, gradients of weights deferred and reduced behind the last weights pass.
const plan::Plan& ZeroBubblePlan() {
  static const plan::Plan plan =
      plan::TinyPlan(true, {"parallelism.dp=2", "parallelism.pp=2", "parallelism.zero_stage=1",
                            "parallelism.overlap=on", "parallelism.schedule=zero_bubble"});
  return plan;
}

// The training step that runs this segment of the stage's chunk on a microbatch.
size_t StepOf(const plan::Plan& plan, size_t stage, std::int32_t plan::ChunkPasses::*segment,
              std::int32_t microbatch) {
  const plan::StagePlan& found = plan.stages[stage];
  for (size_t i = 0; i < found.programs[0].size(); ++i) {
    const plan::Step& step = found.programs[0][i];
    if (step.kind == plan::StepKind::kRun && step.segment == found.chunks[0].train().*segment &&
        step.microbatch == microbatch)
      return i;
  }
  FAIL("no such step");
  return 0;
}

// Two microbatches change places in the passes of one segment, slots and all.
void SwapTurns(plan::Plan& plan, size_t stage, std::int32_t plan::ChunkPasses::*segment, std::int32_t a,
               std::int32_t b) {
  plan::Program& program = plan.stages[stage].programs[0];
  plan::Step& first = program[StepOf(plan, stage, segment, a)];
  plan::Step& second = program[StepOf(plan, stage, segment, b)];
  std::swap(first.microbatch, second.microbatch);
  std::swap(first.slot, second.slot);
}

}  // namespace

TEST_CASE("mutation: the zero-bubble plan itself is good") {
  CHECK(Verify(ZeroBubblePlan(), {}).ok());
  for (const plan::StagePlan& stage : ZeroBubblePlan().stages) CHECK(stage.chunks[0].slots == 2);
}

TEST_CASE("mutation: turns of weights passes") {
  // Stage 0 runs F0 F1 B0 W0 F2 B1 W1 …, stage 1 F0 B0 F1 B1 W0 F2 B2 W1 ….
  Mutate(ZeroBubblePlan(), "t", "microbatch 1 has not passed backward through chunk 0",
         [](plan::Plan& plan) { SwapTurns(plan, 0, &plan::ChunkPasses::weights, 0, 1); });
  Mutate(ZeroBubblePlan(), "t", "microbatch 2 has not passed forward through chunk 1", [](plan::Plan& plan) {
    plan.stages[1].programs[0][StepOf(plan, 1, &plan::ChunkPasses::weights, 0)].microbatch = 2;
  });
  Mutate(ZeroBubblePlan(), "t", "microbatch 0 has already passed chunk 1", [](plan::Plan& plan) {
    plan.stages[1].programs[0][StepOf(plan, 1, &plan::ChunkPasses::weights, 1)].microbatch = 0;
  });
  Mutate(ZeroBubblePlan(), "t", "microbatch 7 passes chunk 0 without making the gradients of weights",
         [](plan::Plan& plan) {
           Erase(&plan.stages[0].programs[0], StepOf(plan, 0, &plan::ChunkPasses::weights, 7));
         });
  Mutate(ZeroBubblePlan(), "t", "which microbatch 3 still holds", [](plan::Plan& plan) {
    Erase(&plan.stages[0].programs[0], StepOf(plan, 0, &plan::ChunkPasses::weights, 3));
  });
  // On stage 1, W0 and W1 change places: both have passed backward by then.
  Mutate(ZeroBubblePlan(), "t", "before microbatch 0 has overwritten those of the iteration before",
         [](plan::Plan& plan) { SwapTurns(plan, 1, &plan::ChunkPasses::weights, 0, 1); });
  Mutate(ZeroBubblePlan(), "t", "to which other microbatches have still to add",
         [](plan::Plan& plan) { SwapTurns(plan, 1, &plan::ChunkPasses::weights, 6, 7); });
}

TEST_CASE("mutation: slots that weights passes still read") {
  // Microbatch 1 takes the slot of microbatch 0, which has passed backward.
  Mutate(ZeroBubblePlan(), "t", "of chunk 1, which microbatch 0 still holds", [](plan::Plan& plan) {
    for (plan::Step& step : plan.stages[1].programs[0]) {
      if (step.microbatch == 1 && step.slot >= 0) step.slot = 0;
    }
  });
  Mutate(ZeroBubblePlan(), "t", "takes slot 0 of chunk 1, which microbatch 0 still holds",
         [](plan::Plan& plan) {
           plan.stages[1].programs[0][StepOf(plan, 1, &plan::ChunkPasses::forward, 1)].slot = 0;
         });
  Mutate(ZeroBubblePlan(), "t", "holds microbatch 1", [](plan::Plan& plan) {
    plan.stages[1].programs[0][StepOf(plan, 1, &plan::ChunkPasses::weights, 0)].slot = 1;
  });
  // What is received for microbatch 2 waits for the backward pass of microbatch 0 only.
  Mutate(ZeroBubblePlan(), "t", "writes into the slot that stage 1 train step", [](plan::Plan& plan) {
    plan::Program& program = plan.stages[1].programs[0];
    const auto weights = static_cast<std::int32_t>(StepOf(plan, 1, &plan::ChunkPasses::weights, 0));
    const auto backward = static_cast<std::int32_t>(StepOf(plan, 1, &plan::ChunkPasses::backward, 0));
    for (plan::Step& step : program) {
      if (step.kind == plan::StepKind::kReceive && step.microbatch == 2)
        std::replace(step.waits.begin(), step.waits.end(), weights, backward);
    }
  });
  Mutate(ZeroBubblePlan(), "t", "writes into slot 0 of chunk 0, which is free", [](plan::Plan& plan) {
    for (plan::Step& step : plan.stages[0].programs[0]) {
      const bool gradient = step.kind == plan::StepKind::kReceive && step.microbatch == 7;
      if (gradient && step.stream == plan::kReceiveNext) step.slot = 0;
    }
  });
  // The gradient that stage 1 sends goes where no microbatch, or another one, has its activations.
  for (const auto& [slot, text] :
       {std::pair(0, "which microbatch 2 still holds"), std::pair(9, "no slot 9")}) {
    Mutate(ZeroBubblePlan(), "t", text, [slot = slot](plan::Plan& plan) {
      for (plan::Step& step : plan.stages[0].programs[0]) {
        const bool gradient = step.kind == plan::StepKind::kReceive && step.microbatch == 1;
        if (gradient && step.stream == plan::kReceiveNext) step.slot = slot;
      }
    });
  }
}

TEST_CASE("mutation: what weights passes read") {
  const auto refs_of = [](plan::Segment& segment, std::int32_t value) {
    std::vector<plan::BufferRef*> refs;
    for (plan::Instruction& instruction : segment.instructions) {
      for (auto* list : {&instruction.inputs, &instruction.outputs}) {
        for (plan::BufferRef& ref : *list) {
          if (ref.value == value) refs.push_back(&ref);
        }
      }
    }
    return refs;
  };
  // A transient of the backward pass lies where it left what the weights pass reads.
  Mutate(ZeroBubblePlan(), "s", "weights.0 #", [&](plan::Plan& plan) {
    plan::Segment& backward = SegmentOf(plan, 0, "backward.0");
    const plan::Instruction& wgrad = At(plan, 0, "weights.0", "linear_wgrad");
    const plan::BufferRef saved = wgrad.inputs[1];
    REQUIRE(saved.in_slot);
    REQUIRE(refs_of(backward, saved.value).empty());
    const size_t i = Find(backward, [&](const plan::Instruction& instruction) {
      const plan::BufferRef& output = instruction.outputs[0];
      return output.value >= 0 && !output.in_slot && output.bytes() <= saved.bytes() &&
             plan.values[static_cast<size_t>(output.value)].kind == graph::ValueKind::kActivation &&
             instruction.op()->in_place_input < 0;
    });
    for (plan::BufferRef* ref : refs_of(backward, backward.instructions[i].outputs[0].value)) {
      ref->offset = saved.offset;
      ref->in_slot = true;
    }
  });
  // A gradient that the backward pass makes for the weights pass lies among the transients.
  Mutate(ZeroBubblePlan(), "s", "before it is written", [&](plan::Plan& plan) {
    plan::Segment& backward = SegmentOf(plan, 0, "backward.0");
    plan::Segment& weights = SegmentOf(plan, 0, "weights.0");
    const std::int32_t dy = weights.instructions[Find(weights, "linear_wgrad", 1)].inputs[0].value;
    const std::int64_t bytes = plan.values[static_cast<size_t>(dy)].local_bytes();
    plan::StagePlan& stage = plan.stages[0];
    REQUIRE(!refs_of(backward, dy).empty());
    for (plan::Segment* segment : {&backward, &weights}) {
      for (plan::BufferRef* ref : refs_of(*segment, dy)) {
        ref->offset = stage.transient_base + stage.pass_bytes;
        ref->in_slot = false;
      }
    }
    stage.pass_bytes += bytes;
    stage.arena_bytes += bytes;
  });
  Mutate(ZeroBubblePlan(), "s", "before it is written", [](plan::Plan& plan) {
    // A product for weights reads what the backward pass has in a buffer of the pipeline, not in the slot.
    plan::Segment& weights = SegmentOf(plan, 1, "weights.1");
    plan::BufferRef& dy = weights.instructions[Find(weights, "linear_wgrad")].inputs[0];
    dy.in_slot = false;
  });
}

TEST_CASE("mutation: gradients of weights passes") {
  Mutate(ZeroBubblePlan(), "g", "add to its gradient 0 times",
         [](plan::Plan& plan) { Drop(SegmentOf(plan, 0, "weights.0"), "linear_wgrad"); });
  Mutate(ZeroBubblePlan(), "g", "add to its gradient 2 times",
         [](plan::Plan& plan) { Double(SegmentOf(plan, 0, "weights.0"), "linear_wgrad"); });
  Mutate(ZeroBubblePlan(), "g", "adds to the gradient of the iteration before",
         [](plan::Plan& plan) { At(plan, 1, "weights.1", "linear_wgrad").AsKernel()->fresh = 0; });
  Mutate(ZeroBubblePlan(), "s", "overwrites the sum",
         [](plan::Plan& plan) { At(plan, 1, "weights.1", "linear_wgrad").AsKernel()->accumulate = 0; });
  const auto reduction = [](const plan::Instruction& i) { return i.IsBucketExchange(); };
  Mutate(ZeroBubblePlan(), "g", "which are already reduced", MoveUp("weights.0", reduction));
  // Reduced behind the last backward pass, before the weights pass has added.
  Mutate(ZeroBubblePlan(), "g", "which are already reduced", [&](plan::Plan& plan) {
    plan::Segment& weights = SegmentOf(plan, 0, "weights.0");
    const auto at = weights.instructions.begin() + static_cast<std::ptrdiff_t>(Find(weights, reduction));
    SegmentOf(plan, 0, "backward.0").instructions.push_back(*at);
    weights.instructions.erase(at);
  });
  Mutate(ZeroBubblePlan(), "g", "is no reduction behind the last backward pass", [&](plan::Plan& plan) {
    plan::Segment& weights = SegmentOf(plan, 0, "weights.0");
    weights.instructions[Find(weights, reduction)].AsBucketExchange()->last_only = false;
  });
}

}  // namespace engine::verify
