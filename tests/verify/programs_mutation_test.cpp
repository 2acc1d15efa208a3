// Programs of several sizes: what is broken in one that is not the largest is reported, by its name.
#include <doctest/doctest.h>

#include "tests/verify/mutations.h"

namespace engine::verify {
namespace {

// dp 2 · pp 2, batches of 4, 8, 12 and 16 samples: 2, 4, 6 and 8 microbatches.
const plan::Plan& Growing() {
  static const plan::Plan plan =
      plan::TinyPlan(false, {"parallelism.dp=2", "parallelism.pp=2", "training.rampup.start=4",
                             "training.rampup.increment=4", "training.rampup.samples=100"});
  return plan;
}

void Refused(const std::string& text, const std::function<void(plan::Plan&)>& mutate) {
  plan::Plan plan = Growing();
  mutate(plan);
  const absl::Status status = VerifyPrograms(plan);
  CAPTURE(text);
  CHECK(Message(status).find(text) != std::string::npos);
  CHECK(Message(Verify(plan, {})) == Message(status));
}

}  // namespace

TEST_CASE("mutation: the growing plan itself is good") {
  CHECK(Verify(Growing(), {}).ok());
  REQUIRE(Growing().programs.size() == 5);
  CHECK(Growing().ProgramName(1) == "train of 8 samples");
  CHECK(Growing().ProgramName(3) == "train");
  CHECK(Growing().ProgramName(4) == "evaluate");
}

TEST_CASE("mutation: steps of a smaller program") {
  Mutate(Growing(), "mt", "stage 1 train of 8 samples step", [](plan::Plan& plan) {
    plan::Program& program = plan.stages[0].programs[1];
    Erase(&program, FindStep(program, plan::StepKind::kSend, 1));
  });
  Mutate(Growing(), "tms", "train of 4 samples step 3 (forward.0, microbatch 2): there are 2 microbatches",
         [](plan::Plan& plan) {
           for (plan::Step& step : plan.stages[0].programs[0]) {
             if (step.kind == plan::StepKind::kRun && step.microbatch == 1 &&
                 step.segment == plan.stages[0].chunks[0].train().forward)
               step.microbatch = 2;
           }
         });
  // The last microbatch of the program reduces the gradients, not the last of the largest one.
  Mutate(Growing(), "t", "to which other microbatches have still to add", [](plan::Plan& plan) {
    plan::Program& program = plan.stages[0].programs[2];
    plan::Step* first = nullptr;
    for (plan::Step& step : program) {
      if (step.kind != plan::StepKind::kRun || step.segment != plan.stages[0].chunks[0].train().backward)
        continue;
      if (step.microbatch == 4) first = &step;
      if (step.microbatch == 5) std::swap(first->microbatch, step.microbatch);
    }
  });
  Mutate(Growing(), "s", "stage 0 train of 12 samples: ", [](plan::Plan& plan) {
    for (plan::Step& step : plan.stages[0].programs[2]) {
      if (step.kind == plan::StepKind::kSend) step.buffer.offset += 256;
    }
  });
}

TEST_CASE("mutation: the list of programs") {
  Refused("a train program of 8 samples comes behind one of 12",
          [](plan::Plan& plan) { std::swap(plan.programs[1], plan.programs[2]); });
  Refused("train of 8 samples: 3 microbatches of 2 samples are no 8 samples",
          [](plan::Plan& plan) { plan.programs[1].microbatches = 3; });
  Refused("the largest train program has 14 samples, the plan 16", [](plan::Plan& plan) {
    plan.programs[3] = {plan::kTrainForm, 7, 14};
  });
  Refused("stage 1 has 4 programs of 5", [](plan::Plan& plan) { plan.stages[1].programs.pop_back(); });
  Refused("no program evaluates", [](plan::Plan& plan) { plan.programs.pop_back(); });
  Refused("8 microbatches of 2 samples are no global batch of 32",
          [](plan::Plan& plan) { plan.global_batch = 32; });
  Refused("stage 0 has no first and last segment to train",
          [](plan::Plan& plan) { plan.stages[0].ends[plan::kTrainForm].last = -1; });
  Refused("stage 1 has a first and last segment to train", [](plan::Plan& plan) {
    plan.programs.erase(plan.programs.begin(), plan.programs.begin() + 4);
    for (plan::StagePlan& stage : plan.stages)
      stage.programs.erase(stage.programs.begin(), stage.programs.begin() + 4);
    plan.stages[0].ends[plan::kTrainForm] = {};
  });
}

}  // namespace engine::verify
