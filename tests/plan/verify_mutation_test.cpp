// Every check of the verifier can fail: a good plan is broken in one place, and the checks meant for it
// report it.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "engine/backend/cuda/profile.h"
#include "engine/plan/verify.h"
#include "tests/plan/plans.h"

namespace engine::plan {
namespace {

struct Check {
  char letter;
  absl::Status (*verify)(const Plan&);
};
constexpr Check kChecks[] = {{'c', VerifyCoverage},     {'p', VerifyPlacements}, {'g', VerifyGradients},
                             {'z', VerifyShards},       {'s', VerifySegments},   {'t', VerifySteps},
                             {'m', VerifyCommunication}};

// Breaks a copy; `letters` are the checks that must report it, no other may; the first of them with `text`.
void Mutate(const Plan& good, const std::string& letters, const std::string& text,
            const std::function<void(Plan&)>& mutate) {
  CAPTURE(text);
  Plan plan = good;
  mutate(plan);
  std::string reported;
  std::string first;
  for (const Check& check : kChecks) {
    const absl::Status status = check.verify(plan);
    if (status.ok()) continue;
    reported += check.letter;
    if (check.letter == letters[0]) first = Message(status);
    if (letters.find(check.letter) == std::string::npos)
      MESSAGE(std::string(1, check.letter) << ": " << Message(status));
  }
  std::string expected = letters;
  std::sort(expected.begin(), expected.end());
  std::sort(reported.begin(), reported.end());
  CHECK(reported == expected);
  CHECK_MESSAGE(first.find(text) != std::string::npos, first);
  CHECK_FALSE(Verify(plan, {}).ok());
}

// dp 2 · tp 2 · pp 2 with sequence parallelism and ZeRO-1, tied embeddings, 8 microbatches.
const Plan& Good() {
  static const Plan plan =
      TinyPlan(false, {"parallelism.dp=2", "parallelism.tp=2", "parallelism.pp=2",
                       "parallelism.sequence_parallel=true", "parallelism.zero_stage=1"});
  return plan;
}

size_t FindStep(const Program& program, StepKind kind, int nth = 0) {
  for (size_t i = 0; i < program.size(); ++i) {
    if (program[i].kind == kind && nth-- == 0) return i;
  }
  FAIL("no such step");
  return 0;
}

// Erases a step and moves the waits of those after it.
void Erase(Program* program, size_t at) {
  program->erase(program->begin() + static_cast<std::ptrdiff_t>(at));
  for (Step& step : *program) {
    std::erase(step.waits, static_cast<std::int32_t>(at));
    for (std::int32_t& wait : step.waits) wait -= wait > static_cast<std::int32_t>(at) ? 1 : 0;
  }
}

Segment& SegmentOf(Plan& plan, size_t stage, const std::string& name) {
  for (Segment& segment : plan.stages[stage].segments) {
    if (segment.name == name) return segment;
  }
  FAIL("no segment " << name);
  return plan.stages[stage].segments[0];
}

size_t Find(const Segment& segment, const std::string& kernel, int nth = 0) {
  for (size_t i = 0; i < segment.instructions.size(); ++i) {
    if (segment.instructions[i].kernel == kernel && nth-- == 0) return i;
  }
  FAIL("no " << kernel);
  return 0;
}

void Drop(Segment& segment, const std::string& kernel, int nth = 0) {
  segment.instructions.erase(segment.instructions.begin() +
                             static_cast<std::ptrdiff_t>(Find(segment, kernel, nth)));
}

void Double(Segment& segment, const std::string& kernel, int nth = 0) {
  const size_t i = Find(segment, kernel, nth);
  const Instruction copy = segment.instructions[i];
  segment.instructions.insert(segment.instructions.begin() + static_cast<std::ptrdiff_t>(i), copy);
}

Instruction& At(Plan& plan, size_t stage, const std::string& segment, const std::string& kernel,
                int nth = 0) {
  Segment& found = SegmentOf(plan, stage, segment);
  return found.instructions[Find(found, kernel, nth)];
}

}  // namespace

TEST_CASE("mutation: the plan itself is good") { CHECK(Verify(Good(), {}).ok()); }

TEST_CASE("mutation: sends and receives") {
  Mutate(Good(), "mt", "has no send on stage 0", [](Plan& plan) {
    Program& program = plan.stages[0].train;
    Erase(&program, FindStep(program, StepKind::kSend, 2));
  });
  Mutate(Good(), "mt", "has no receive on stage 1", [](Plan& plan) {
    Program& program = plan.stages[1].train;
    Erase(&program, FindStep(program, StepKind::kReceive, 2));
  });
  Mutate(Good(), "tm", "repeats stage 0 train step", [](Plan& plan) {
    Program& program = plan.stages[0].train;
    const Step copy = program[FindStep(program, StepKind::kSend)];
    program.insert(program.end() - 1, copy);
    program[program.size() - 2].microbatch = 7;
    program[program.size() - 2].waits.clear();
  });
  Mutate(Good(), "ms", "its buffer has", [](Plan& plan) {
    plan.stages[1].train[FindStep(plan.stages[1].train, StepKind::kReceive)].buffer.elements -= 1;
  });
  // Microbatches 0 and 1 change places where they are received: the wrong one is read, and the streams cross.
  Mutate(Good(), "mt", "the order of sends is not that of receives", [](Plan& plan) {
    Program& program = plan.stages[1].train;
    std::swap(program[FindStep(program, StepKind::kReceive, 0)].microbatch,
              program[FindStep(program, StepKind::kReceive, 1)].microbatch);
  });
  Mutate(Good(), "tm", "does not wait for it", [](Plan& plan) {
    Program& program = plan.stages[1].train;
    const Step copy = program[FindStep(program, StepKind::kReceive)];
    program.insert(program.end() - 1, copy);
    program[program.size() - 2].microbatch = 7;
    program[program.size() - 2].waits.clear();
  });
  Mutate(Good(), "mt", "the order of sends is not that of receives", [](Plan& plan) {
    Program& program = plan.stages[0].train;
    std::swap(program[FindStep(program, StepKind::kSend, 0)].microbatch,
              program[FindStep(program, StepKind::kSend, 1)].microbatch);
  });
  // A stage sends what the other one makes.
  Mutate(Good(), "mst", "belongs to stage 1", [](Plan& plan) {
    Program& program = plan.stages[0].train;
    Step& send = program[FindStep(program, StepKind::kSend)];
    send.transfer = program[FindStep(program, StepKind::kReceive)].transfer;
    send.stream = kSendPrevious;
  });
}

TEST_CASE("mutation: doubled and dropped accumulations") {
  const auto twice = [](Plan& plan, int stage, const char* segment, const char* kernel) {
    Segment& found = SegmentOf(plan, stage, segment);
    const size_t at = Find(found, kernel);
    const Instruction copy = found.instructions[at];
    found.instructions.insert(found.instructions.begin() + static_cast<std::ptrdiff_t>(at), copy);
  };
  Mutate(Good(), "g", "add to its gradient 2 times",
         [&](Plan& plan) { twice(plan, 1, "backward.1", "linear_wgrad"); });
  Mutate(Good(), "g", "adds to the loss 2 times, not 1",
         [&](Plan& plan) { twice(plan, 1, "forward.1", "loss_sum"); });
  Mutate(Good(), "g", "adds to the loss 0 times, not 1",
         [](Plan& plan) { Drop(SegmentOf(plan, 1, "evaluate.1"), "loss_sum"); });
  Mutate(Good(), "s", "instructions, but", [&](Plan& plan) { twice(plan, 0, "begin", "zero"); });
}

TEST_CASE("mutation: deadlocks") {
  // The sums of the scalars and of the tied gradients change places on one stage.
  Mutate(Good(), "mg", "stage 0", [](Plan& plan) {
    Segment& update = SegmentOf(plan, 0, "update");
    std::swap(update.instructions[Find(update, "all_reduce", 0)],
              update.instructions[Find(update, "all_reduce", 1)]);
  });
  // Both stages first want to receive.
  Mutate(Good(), "mt", "deadlock: stage 0 waits at train step 1 (receive", [](Plan& plan) {
    Program& program = plan.stages[0].train;
    const size_t receive = FindStep(program, StepKind::kReceive);
    Step step = program[receive];
    step.waits.clear();
    Erase(&program, receive);
    program.insert(program.begin() + 1, step);
    for (size_t i = 2; i < program.size(); ++i) {
      for (std::int32_t& wait : program[i].waits) wait += wait >= 1 ? 1 : 0;
    }
  });
  Mutate(Good(), "mg",
         "in stage 0 update #0 bucket.0.tie for stage 1, which waits at train step 33 (update) in stage 1 "
         "update #7 "
         "scalars.all_reduce for stage 0",
         [](Plan& plan) { Drop(SegmentOf(plan, 1, "update"), "all_reduce", 0); });
  Mutate(Good(), "mg",
         "(all_reduce of f64[1]) meets stage 0 evaluate_end #0 scalars.all_reduce (all_reduce of f64[2])",
         [](Plan& plan) {
           Instruction& sum = At(plan, 1, "evaluate_end", "all_reduce");
           sum.inputs[0].elements = sum.outputs[0].elements = 1;
           sum.wire_bytes /= 2;
         });
  Mutate(Good(), "mg", "which has ended",
         [](Plan& plan) { Drop(SegmentOf(plan, 1, "evaluate_end"), "all_reduce"); });
  Mutate(Good(), "mg", "only the first rank of tp enters it",
         [](Plan& plan) { At(plan, 0, "forward.0", "all_gather").only_first = AxisSet::Of(Axis::kTp); });
  Mutate(Good(), "m", "it counts",
         [](Plan& plan) { At(plan, 0, "forward.0", "all_gather").wire_bytes += 1; });
}

TEST_CASE("mutation: waits") {
  Mutate(Good(), "t", "does not wait for stage 1 train step", [](Plan& plan) {
    Program& program = plan.stages[1].train;
    for (Step& step : program) {
      if (step.kind == StepKind::kRun) step.waits.clear();
    }
  });
  Mutate(Good(), "t", "which writes what it sends", [](Plan& plan) {
    Program& program = plan.stages[0].train;
    program[FindStep(program, StepKind::kSend)].waits.clear();
  });
  Mutate(Good(), "t", "overwrites the buffer that", [](Plan& plan) {
    for (Step& step : plan.stages[0].train) {
      if (step.kind != StepKind::kRun) continue;
      std::erase_if(step.waits, [&](std::int32_t wait) {
        return plan.stages[0].train[static_cast<size_t>(wait)].kind == StepKind::kSend;
      });
    }
  });
  Mutate(Good(), "t", "and does not wait for it", [](Plan& plan) {
    for (Step& step : plan.stages[1].train) {
      if (step.kind == StepKind::kReceive) step.waits.clear();
    }
  });
  Mutate(Good(), "tsm", "is not before it", [](Plan& plan) { plan.stages[0].train[1].waits = {50}; });
}

TEST_CASE("mutation: slots and turns") {
  Mutate(Good(), "t", "which microbatch 0 still holds", [](Plan& plan) {
    int seen = 0;
    for (Step& step : plan.stages[0].train) {
      if (step.kind == StepKind::kRun && step.microbatch == 1 && seen++ == 0) step.slot = 0;
    }
  });
  Mutate(Good(), "t", "uses slot 9 of 2", [](Plan& plan) {
    plan.stages[0].train[FindStep(plan.stages[0].train, StepKind::kRun, 1)].slot = 9;
  });
  // The backward pass of one microbatch reads another's activations.
  Mutate(Good(), "t", "holds microbatch", [](Plan& plan) {
    for (Step& step : plan.stages[0].train) {
      const bool backward =
          step.kind == StepKind::kRun && step.chunk == 0 && step.segment == plan.stages[0].chunks[0].backward;
      if (backward && step.microbatch == 0) step.slot = 1;
    }
  });
  Mutate(Good(), "t", "has already passed", [](Plan& plan) {
    plan.stages[0].train[FindStep(plan.stages[0].train, StepKind::kRun, 2)].microbatch = 0;
  });
  Mutate(Good(), "t", "starts with begin", [](Plan& plan) {
    Program& program = plan.stages[1].train;
    program[FindStep(program, StepKind::kRun)].segment = plan.stages[1].chunks[0].forward;
    program[FindStep(program, StepKind::kRun)].microbatch = 0;
  });
}

TEST_CASE("mutation: buffers inside a segment") {
  Mutate(Good(), "s", "before it is written",
         [](Plan& plan) { Drop(SegmentOf(plan, 0, "forward.0"), "qkv_split"); });
  Mutate(Good(), "s", "before it is written", [](Plan& plan) {
    Segment& forward = SegmentOf(plan, 0, "forward.0");
    const size_t i = Find(forward, "linear", 2);
    std::swap(forward.instructions[i], forward.instructions[i + 1]);
  });
  // A lifetime cut short: a transient is put where another one still lives.
  Mutate(Good(), "s", "whose bytes hold what forward.0 #", [](Plan& plan) {
    Segment& forward = SegmentOf(plan, 0, "forward.0");
    for (size_t i = 0; i + 1 < forward.instructions.size(); ++i) {
      Instruction& instruction = forward.instructions[i];
      if (instruction.kernel != "dropout" || instruction.name.find("layers.0.attention") == std::string::npos)
        continue;
      // The residual stream, which the add after it still reads.
      const BufferRef residual = forward.instructions[i + 1].inputs[0];
      for (Instruction& reader : forward.instructions) {
        for (BufferRef& ref : reader.inputs) {
          if (ref.value == instruction.outputs[0].value)
            ref = {ref.value, residual.offset, ref.elements, ref.dtype, residual.in_slot};
        }
      }
      const BufferRef old = instruction.outputs[0];
      instruction.outputs[0] = {old.value, residual.offset, old.elements, old.dtype, residual.in_slot};
      return;
    }
  });
  Mutate(Good(), "s", "but a slot has", [](Plan& plan) {
    for (Chunk& chunk : plan.stages[1].chunks) {
      chunk.slot_bytes -= 256;
    }
  });
  Mutate(Good(), "s", "overlaps staged inputs of chunk 0",
         [](Plan& plan) { plan.stages[0].chunks[0].slot_base -= 256; });
  Mutate(Good(), "s", "a staging buffer of",
         [](Plan& plan) { plan.stages[0].chunks[0].staged.elements -= 1; });
  Mutate(Good(), "s", "lies at",
         [](Plan& plan) { At(plan, 0, "forward.0", "linear").inputs[1].offset += 64; });
  Mutate(Good(), "s", "overwrites the sum",
         [](Plan& plan) { At(plan, 0, "backward.0", "linear_wgrad").accumulate = 0; });
  Mutate(Good(), "s", "its buffer f32[",
         [](Plan& plan) { At(plan, 0, "forward.0", "linear").inputs[0].elements /= 2; });
  Mutate(Good(), "s", "outside of the arena", [](Plan& plan) {
    Instruction& norm = At(plan, 0, "evaluate.0", "layer_norm");
    norm.scratch = {.offset = plan.stages[0].arena_bytes, .elements = 64, .dtype = DType::kU8};
  });
  Mutate(Good(), "s", "its scratch at", [](Plan& plan) {
    Instruction& linear = At(plan, 0, "evaluate.0", "linear");
    linear.scratch = {.offset = linear.outputs[0].offset, .elements = 64, .dtype = DType::kU8};
  });
  Mutate(Good(), "g", "adds to the gradient of the iteration before",
         [](Plan& plan) { At(plan, 0, "backward.0", "linear_wgrad").fresh = 0; });
  Mutate(Good(), "s", "overwrites the sum loss in the first microbatch",
         [](Plan& plan) { At(plan, 1, "forward.1", "loss_sum").fresh = 1; });
  Mutate(Good(), "s", "does not zero the scalars",
         [](Plan& plan) { Drop(SegmentOf(plan, 1, "evaluate_begin"), "zero"); });
}

TEST_CASE("mutation: placements") {
  Mutate(Good(), "p", "runs over the group dp",
         [](Plan& plan) { At(plan, 0, "forward.0", "all_gather").group = AxisSet::Of(Axis::kDp); });
  Mutate(Good(), "pm", "is all_gather, not all_to_all", [](Plan& plan) {
    Instruction& gather = At(plan, 0, "forward.0", "all_gather");
    gather.kernel = "all_to_all";
    gather.collective = Collective::kAllToAll;
  });
  Mutate(Good(), "p", "uses another reduction", [](Plan& plan) {
    for (Instruction& instruction : SegmentOf(plan, 1, "forward.1").instructions) {
      if (instruction.collective == Collective::kAllReduce) instruction.reduction = graph::Reduction::kSum;
    }
  });
  // A norm's weight is partial.
  Mutate(Good(), "pc", "is no lawful placement of layer_norm", [](Plan& plan) {
    const Instruction& norm = At(plan, 0, "forward.0", "layer_norm");
    plan.values[static_cast<size_t>(norm.inputs[1].value)].layout.Set(Axis::kDp, Placement::P());
  });
  Mutate(Good(), "p", "on a rank", [](Plan& plan) {
    const Instruction& norm = At(plan, 0, "evaluate.0", "layer_norm");
    plan.values[static_cast<size_t>(norm.outputs[1].value)].layout.Set(Axis::kTp, Placement::R());
  });
}

TEST_CASE("mutation: gradients") {
  const auto update = [](Plan& plan) -> Segment& { return SegmentOf(plan, 0, "update"); };
  Mutate(Good(), "gm", "before they are summed over the tie",
         [&](Plan& plan) { Drop(update(plan), "all_reduce", 0); });
  Mutate(Good(), "gm", "(or no longer) to be summed over the tie",
         [&](Plan& plan) { Double(update(plan), "all_reduce", 0); });
  Mutate(Good(), "g", "which are still partial over",
         [&](Plan& plan) { Drop(update(plan), "reduce_scatter", 0); });
  Mutate(Good(), "g", "are already scattered",
         [&](Plan& plan) { Double(update(plan), "reduce_scatter", 1); });
  Mutate(Good(), "gm", "but they are partial over", [&](Plan& plan) {
    Instruction& scatter = At(plan, 0, "update", "reduce_scatter");
    scatter.group = AxisSet::Of(Axis::kCp);
  });
  Mutate(Good(), "g", "is never updated", [&](Plan& plan) {
    Drop(update(plan), "adamw", 1);
    Drop(update(plan), "all_gather", 1);
  });
  Mutate(Good(), "g", "is updated twice", [&](Plan& plan) { Double(update(plan), "adamw", 1); });
  Mutate(
      Good(), "g", "the first stage sums the tied table by all_reduce reduce_scatter, the last by",
      [](Plan& plan) { At(plan, 1, "update", "reduce_scatter").kernel = "reduce_scatter_of_another_order"; });
  Mutate(Good(), "g", "never gathered", [&](Plan& plan) { Drop(update(plan), "all_gather", 0); });
  Mutate(Good(), "g", "nothing to gather", [&](Plan& plan) { Double(update(plan), "all_gather", 0); });
  Mutate(Good(), "g", "the norm is summed before that of bucket.0",
         [&](Plan& plan) { Drop(update(plan), "sum_squares", 0); });
  Mutate(Good(), "g", "is counted twice in the norm",
         [&](Plan& plan) { Double(update(plan), "sum_squares", 0); });
  Mutate(Good(), "gm", "loss and norm are summed twice",
         [&](Plan& plan) { Double(update(plan), "all_reduce", 1); });
  // Without sequence parallelism tp repeats the gradients of norms.
  const Plan repeated = TinyPlan(false, {"parallelism.tp=2"});
  Mutate(repeated, "g", "but counted on the first of", [&](Plan& plan) {
    for (Instruction& instruction : update(plan).instructions) instruction.only_first = {};
  });
  Mutate(Good(), "g", "but what it adds to is repeated over tp",
         [&](Plan& plan) { At(plan, 1, "forward.1", "loss_sum").only_first = {}; });
  Mutate(Good(), "g", "but the backward passes add to its gradient 0 times",
         [&](Plan& plan) { Drop(SegmentOf(plan, 0, "backward.0"), "linear_wgrad"); });
  Mutate(Good(), "g", "does not update the weights", [&](Plan& plan) {
    std::swap(At(plan, 0, "update", "adamw").inputs[2], At(plan, 0, "update", "adamw").inputs[3]);
  });
}

TEST_CASE("mutation: gradients, weights and moments in bf16") {
  const Plan narrow = TinyPlan(false, {"precision.compute=bf16", "precision.gradient_dtype=bf16",
                                       "precision.master_dtype=bf16", "optimizer.moment_dtype=bf16",
                                       "parallelism.pp=2", "parallelism.dp=2", "parallelism.zero_stage=1"});
  const absl::Status good = Verify(narrow, {});
  REQUIRE_MESSAGE(good.ok(), Message(good));
  const auto with = [](const Instruction& instruction, const char* name, const char* draws) {
    graph::Attributes attributes;
    for (const auto& [key, item] : instruction.attributes.items()) {
      if (key != name) attributes.Set(key, item);
    }
    if (draws != nullptr) attributes.Set(name, std::string(draws));
    return attributes;
  };
  for (const char* name : {"stream", "weight_stream"}) {
    Mutate(narrow, "g", std::string("rounds to bf16 without the attribute ") + name, [&](Plan& plan) {
      Instruction& adamw = At(plan, 0, "update", "adamw", 1);
      adamw.attributes = with(adamw, name, nullptr);
    });
    Mutate(narrow, "g", "the first stage rounds the tied table by", [&](Plan& plan) {
      for (Instruction& instruction : SegmentOf(plan, 1, "update").instructions) {
        if (instruction.kernel != "adamw" || instruction.attributes.String("stream") != "tied.moments")
          continue;
        instruction.attributes = with(instruction, name, "another");
      }
    });
  }
  Mutate(narrow, "cs", "its bucket's are bf16", [](Plan& plan) {
    plan.values[static_cast<size_t>(plan.parameters[0].gradient)].dtype = DType::kF32;
  });
  Mutate(narrow, "cgs", "gradients of f32",
         [](Plan& plan) { plan.stages[0].buckets[0].gradient.dtype = DType::kF32; });
}

TEST_CASE("mutation: coverage") {
  const auto bucket = [](Plan& plan) -> Bucket& {
    std::vector<Bucket>& buckets = plan.stages[0].buckets;
    return *std::find_if(buckets.begin(), buckets.end(), [](const Bucket& b) { return b.items.size() > 1; });
  };
  Mutate(Good(), "cs", "its shard", [&](Plan& plan) { bucket(plan).items[0].elements -= 16; });
  Mutate(Good(), "cs", "inside of what ends at",
         [&](Plan& plan) { bucket(plan).items[1].offset_elements = bucket(plan).items[0].elements - 1; });
  Mutate(Good(), "cs", "is owned by 0 stages", [&](Plan& plan) { bucket(plan).items.pop_back(); });
  Mutate(Good(), "cg", "is owned by 2 stages", [](Plan& plan) {
    for (Bucket& bucket : plan.stages[1].buckets) bucket.owned = true;
  });
  Mutate(Good(), "c", "comes next", [](Plan& plan) { plan.stages[1].chunks[0].first_layer += 1; });
  Mutate(Good(), "cm", "belongs to stage", [](Plan& plan) { plan.chunk_stage = {1, 1}; });
  Mutate(Good(), "cg", "shards of", [](Plan& plan) { plan.stages[0].buckets[0].moment1.elements -= 16; });
  Mutate(Good(), "cgp", "is a partial sum", [](Plan& plan) {
    plan.values[static_cast<size_t>(plan.parameters[0].value)].layout.Set(Axis::kTp, Placement::P());
  });
}

// ------------------------------------------------------------------------------------- fused ops and FP8

namespace {

// Of the CUDA executor, fused and with FP8 products; one rank.
const Plan& Fp8() {
  static const Plan plan = [] {
    const recipe::Recipe recipe =
        TinyRecipe(false, {"precision.compute=fp8", "model.layers=2", "model.dropout.hidden=0"});
    absl::StatusOr<Plan> made = train::CompileUnverified(recipe, {.profile = backend::cuda::CudaProfile()});
    if (!made.ok()) FAIL(Message(made.status()));
    return *std::move(made);
  }();
  return plan;
}

// The places of a quantised weight, in StagePlan::derived.
BufferRef& Derived(Plan& plan, const std::string& name) {
  for (BufferRef& ref : plan.stages[0].derived) {
    if (plan.values[static_cast<size_t>(ref.value)].name == name) return ref;
  }
  FAIL("no " << name);
  return plan.stages[0].derived[0];
}

}  // namespace

TEST_CASE("mutation: the FP8 plan itself is good") { CHECK(Verify(Fp8(), {}).ok()); }

TEST_CASE("mutation: derived values") {
  const auto begin = [](Plan& plan) -> Segment& { return SegmentOf(plan, 0, "begin"); };
  Mutate(Fp8(), "sg", "times, not once", [&](Plan& plan) { Drop(begin(plan), "quantize", 3); });
  Mutate(Fp8(), "sg", ".fp8 2 times, not once", [&](Plan& plan) { Double(begin(plan), "quantize", 3); });
  Mutate(Fp8(), "s", "overlaps", [](Plan& plan) {
    Derived(plan, "layers.1.mlp.fc1.weight.fp8").offset = Derived(plan, "layers.0.mlp.fc1.weight.fp8").offset;
  });
  Mutate(Fp8(), "sg", "overlaps", [](Plan& plan) { plan.stages[0].states.offset -= 256; });
  Mutate(Fp8(), "s", "lies at",
         [](Plan& plan) { At(plan, 0, "begin", "quantize").outputs[1].offset += 256; });
  Mutate(Fp8(), "s", "lies at",
         [](Plan& plan) { At(plan, 0, "forward.0", "linear_fp8").inputs[1].offset += 256; });
  Mutate(Fp8(), "s", "lies at",
         [](Plan& plan) { At(plan, 0, "forward.0", "linear_fp8").inputs[2].offset += 32; });
  // A microbatch writes a weight again.
  Mutate(Fp8(), "sg", "which is no activation", [](Plan& plan) {
    Instruction& quantize = At(plan, 0, "forward.0", "quantize");
    quantize.inputs[0] = At(plan, 0, "begin", "quantize").inputs[0];
    quantize.outputs = At(plan, 0, "begin", "quantize").outputs;
  });
  // Two weights in one buffer, everywhere.
  Mutate(Fp8(), "s", "overlaps", [](Plan& plan) {
    const BufferRef one = Derived(plan, "layers.0.mlp.fc1.weight.fp8");
    BufferRef& other = Derived(plan, "layers.1.mlp.fc1.weight.fp8");
    for (Segment& segment : plan.stages[0].segments) {
      for (Instruction& instruction : segment.instructions) {
        for (auto* refs : {&instruction.inputs, &instruction.outputs}) {
          for (BufferRef& ref : *refs) {
            if (ref.value == other.value) ref.offset = one.offset;
          }
        }
      }
    }
    other.offset = one.offset;
  });
}

TEST_CASE("mutation: states of quantised tensors") {
  const auto update = [](Plan& plan) -> Segment& { return SegmentOf(plan, 0, "update"); };
  Mutate(Fp8(), "g", "the states are never updated", [&](Plan& plan) { Drop(update(plan), "fp8_update"); });
  Mutate(Fp8(), "g", "the states are updated twice", [&](Plan& plan) { Double(update(plan), "fp8_update"); });
  Mutate(Fp8(), "g", "is not of all states, in place", [](Plan& plan) {
    Instruction& states = At(plan, 0, "update", "fp8_update");
    states.inputs[0].elements -= 8;
    states.outputs[0].elements -= 8;
  });
  Mutate(Fp8(), "g", "is not of all states, in place",
         [](Plan& plan) { At(plan, 0, "update", "fp8_update").outputs[0].offset += 32; });
  Mutate(Fp8(), "g", "the update knows no kernel",
         [](Plan& plan) { At(plan, 0, "update", "fp8_update").kernel = "copy"; });
}

namespace {

// dp 2 · tp 2 with sequence parallelism and ZeRO-1, gathered behind the update.
const Plan& Fp8Ranks() {
  static const Plan plan = [] {
    const recipe::Recipe recipe =
        TinyRecipe(false, {"precision.compute=fp8", "model.layers=2", "model.dropout.hidden=0",
                           "parallelism.dp=2", "parallelism.tp=2", "parallelism.sequence_parallel=true",
                           "parallelism.zero_stage=1", "parallelism.overlap=on", "training.micro_batch=4"});
    absl::StatusOr<Plan> made = train::CompileUnverified(recipe, {.profile = backend::cuda::CudaProfile()});
    if (!made.ok()) FAIL(Message(made.status()));
    return *std::move(made);
  }();
  return plan;
}

size_t FindNamed(const Segment& segment, const std::string& name) {
  for (size_t i = 0; i < segment.instructions.size(); ++i) {
    if (segment.instructions[i].name == name) return i;
  }
  FAIL("no " << name);
  return 0;
}

}  // namespace

TEST_CASE("mutation: the FP8 plan of several ranks is good") { CHECK(Verify(Fp8Ranks(), {}).ok()); }

TEST_CASE("mutation: largest values of quantised tensors over the ranks of a stage") {
  const auto change = [](const std::function<void(std::vector<Instruction>&, size_t)>& how) {
    return [how](Plan& plan) {
      Segment& update = SegmentOf(plan, 0, "update");
      how(update.instructions, FindNamed(update, "states.all_reduce"));
    };
  };
  const auto at = [](std::vector<Instruction>& list, size_t i) {
    return list.begin() + static_cast<std::ptrdiff_t>(i);
  };
  Mutate(Fp8Ranks(), "g", "by the rank's own largest values, not by those over dp+tp",
         change([&](auto& list, size_t i) { list.erase(at(list, i)); }));
  Mutate(Fp8Ranks(), "g", "are taken twice",
         change([&](auto& list, size_t i) { list.insert(at(list, i), Instruction(list[i])); }));
  Mutate(Fp8Ranks(), "g", "the largest over dp+tp are taken, not all_reduce over dp+tp",
         change([](auto& list, size_t i) { list[i].reduction = graph::Reduction::kSum; }));
  Mutate(Fp8Ranks(), "g", "the largest over dp+tp are taken, not all_reduce (max) over dp",
         change([](auto& list, size_t i) {
           list[i].group = AxisSet::Of(Axis::kDp);
           list[i].wire_bytes = list[i].inputs[0].bytes();  // 2 · bytes · (2 − 1) / 2
         }));
  Mutate(Fp8Ranks(), "g", "takes no sum", change([](auto& list, size_t i) {
           for (BufferRef* ref : {&list[i].inputs[0], &list[i].outputs[0]}) ref->elements -= 8;
           list[i].wire_bytes = 2 * list[i].inputs[0].bytes() * 3 / 4;
         }));
  // Beside what is gathered; after the update of the states.
  Mutate(Fp8Ranks(), "g", "runs beside what is gathered behind the update",
         change([&](auto& list, size_t i) { std::rotate(at(list, i), at(list, i + 1), list.end() - 1); }));
  Mutate(Fp8Ranks(), "g", "by the rank's own largest values",
         change([&](auto& list, size_t i) { std::rotate(at(list, i), list.end() - 1, list.end()); }));
  // All else is summed.
  for (const char* name : {"scalars.all_reduce", "bucket.0.reduce_scatter"}) {
    Mutate(Fp8Ranks(), "g", "takes no sum", [&](Plan& plan) {
      for (Segment& segment : plan.stages[0].segments) {
        for (Instruction& instruction : segment.instructions) {
          if (instruction.name == name) instruction.reduction = graph::Reduction::kMax;
        }
      }
    });
  }
}

TEST_CASE("mutation: placements of FP8 ops") {
  // What tp splits is taken for a tensor that every rank holds whole.
  const auto whole = [](const char* segment, const char* kernel, size_t output) {
    return [segment, kernel, output](Plan& plan) {
      const BufferRef& ref = At(plan, 0, segment, kernel).outputs[output];
      LocalValue& value = plan.values[static_cast<size_t>(ref.value)];
      REQUIRE(!value.layout.At(Axis::kTp).replicated());
      REQUIRE(value.layout.Set(Axis::kTp, Placement::R()));
      const Shape local = value.layout.LocalShape(value.shape, plan.mesh);
      for (int d = 0; d < local.rank(); ++d) value.shape[d] = value.shape[d] * value.local[d] / local[d];
    };
  };
  Mutate(Fp8Ranks(), "p", "is no lawful placement of quantize", whole("begin", "quantize", 0));
  Mutate(Fp8Ranks(), "p", "is no lawful placement of quantize", whole("begin", "quantize", 1));
  Mutate(Fp8Ranks(), "p", "is no lawful placement of gelu_quantize", whole("forward.0", "gelu_quantize", 0));
  Mutate(Fp8Ranks(), "p", "is no lawful placement of gelu_grad_quantize",
         whole("backward.0", "gelu_grad_quantize", 1));
  Mutate(Fp8Ranks(), "p", "is no lawful placement of linear_fp8", whole("forward.0", "linear_fp8", 0));
  Mutate(Fp8Ranks(), "p", "is no lawful placement of linear_dgrad_fp8",
         whole("backward.0", "linear_dgrad_fp8", 0));
  // Operands in the other's place.
  Mutate(Fp8Ranks(), "p", "is no lawful placement of linear_wgrad_fp8", [](Plan& plan) {
    Instruction& product = At(plan, 0, "backward.0", "linear_wgrad_fp8");
    std::swap(product.inputs[0], product.inputs[1]);
    std::swap(product.inputs[2], product.inputs[3]);
  });
}

TEST_CASE("mutation: first sums") {
  Mutate(Fp8(), "g", "adds to the gradient of the iteration before",
         [](Plan& plan) { At(plan, 0, "backward.0", "linear_wgrad_fp8", 2).fresh = 0; });
  // The bias that a quantisation sums.
  Mutate(Fp8(), "g", "adds to the gradient of the iteration before",
         [](Plan& plan) { At(plan, 0, "backward.0", "gelu_grad_quantize").fresh = 0; });
  // The tied table: the head's gradient overwrites, the lookup's adds.
  Mutate(Fp8(), "g", "overwrites a sum, which is not the gradient of the iteration before", [](Plan& plan) {
    for (Instruction& instruction : SegmentOf(plan, 0, "backward.0").instructions) {
      if (instruction.kernel == "embedding_grad") instruction.fresh = 1;
    }
  });
  Mutate(Fp8(), "g", "adds to the gradient of the iteration before",
         [](Plan& plan) { At(plan, 0, "backward.0", "linear_cross_entropy").fresh = 0; });
  Mutate(Fp8(), "sg", "overwrites the sum loss in the first microbatch",
         [](Plan& plan) { At(plan, 0, "backward.0", "linear_cross_entropy").fresh |= 0b100; });
  Mutate(Fp8(), "s", "overwrites the sum",
         [](Plan& plan) { At(plan, 0, "backward.0", "linear_wgrad_fp8").accumulate = 0; });
  Mutate(Fp8(), "g", "adds to the loss 0 times, not 1", [](Plan& plan) {
    // The head's sum of the loss goes where nothing reads it.
    Instruction& head = At(plan, 0, "backward.0", "linear_cross_entropy");
    head.outputs.pop_back();
  });
  // Microbatch 1 adds its gradients before microbatch 0 has overwritten those of the iteration before.
  Mutate(Good(), "t", "before microbatch 0 has overwritten those of the iteration before", [](Plan& plan) {
    std::vector<Step*> backward;
    for (Step& step : plan.stages[0].train) {
      if (step.kind == StepKind::kRun && step.chunk == 0 && step.segment == plan.stages[0].chunks[0].backward)
        backward.push_back(&step);
    }
    std::swap(backward[0]->microbatch, backward[1]->microbatch);
    std::swap(backward[0]->slot, backward[1]->slot);
  });
}

// tp 2, so that placements matter; the profile fuses.
TEST_CASE("mutation: placements of fused ops") {
  absl::StatusOr<Plan> made = train::CompileUnverified(
      TinyRecipe(false,
                 {"precision.compute=bf16", "parallelism.tp=2", "model.layers=2", "model.dropout.hidden=0"}),
      {.profile = backend::cuda::CudaProfile()});
  REQUIRE(made.ok());
  const Plan& fused = *made;
  REQUIRE(Verify(fused, {}).ok());
  const auto layout = [](Plan& plan, const BufferRef& ref) -> Layout& {
    return plan.values[static_cast<size_t>(ref.value)].layout;
  };
  Mutate(fused, "p", "is no lawful placement of add_layer_norm", [&](Plan& plan) {
    layout(plan, At(plan, 0, "evaluate.0", "add_layer_norm").outputs[0]).Set(Axis::kTp, Placement::P());
  });
  Mutate(fused, "p", "is no lawful placement of linear_gelu", [&](Plan& plan) {
    const Instruction& gelu = At(plan, 0, "evaluate.0", "linear_gelu");
    LocalValue& pre = plan.values[static_cast<size_t>(gelu.outputs[1].value)];
    pre.layout.Set(Axis::kTp, Placement::P());
    pre.shape = pre.local;
  });
  Mutate(fused, "p", "is no lawful placement of attention_packed", [&](Plan& plan) {
    // The statistics stand for all heads, but each rank has its own.
    LocalValue& lse =
        plan.values[static_cast<size_t>(At(plan, 0, "evaluate.0", "attention_packed").outputs[1].value)];
    lse.layout.Set(Axis::kTp, Placement::R());
    lse.shape = lse.local;
  });
  // One output fewer than the composition makes.
  Mutate(fused, "p", "is no lawful placement of linear_gelu",
         [&](Plan& plan) { At(plan, 0, "evaluate.0", "linear_gelu").outputs.pop_back(); });
}

TEST_CASE("mutation: staged inputs") {
  Mutate(Good(), "s", "overlaps", [](Plan& plan) {
    plan.stages[0].chunks[0].staged.offset = plan.stages[0].chunks[0].incoming.offset;
  });
  Mutate(Good(), "s", "overlaps incoming inputs of chunk 0",
         [](Plan& plan) { plan.stages[0].chunks[0].staged.offset -= 256; });
  Mutate(Good(), "s", "outside of the arena",
         [](Plan& plan) { plan.stages[0].chunks[0].staged.offset = plan.stages[0].arena_bytes - 16; });
  Mutate(Good(), "s", "a staging buffer of",
         [](Plan& plan) { plan.stages[1].chunks[0].incoming.elements += 4096; });
}

// dp 2 · tp 2 with sequence parallelism and ZeRO-1, halves of 8 microbatches in turns.
const Plan& Overlapped() {
  static const Plan plan =
      TinyPlan(false, {"parallelism.dp=2", "parallelism.tp=2", "parallelism.sequence_parallel=true",
                       "parallelism.zero_stage=1", "parallelism.overlap=on", "training.micro_batch=4"});
  return plan;
}

size_t Find(const Segment& segment, const std::function<bool(const Instruction&)>& wanted) {
  for (size_t i = 0; i < segment.instructions.size(); ++i) {
    if (wanted(segment.instructions[i])) return i;
  }
  FAIL("no such instruction in " << segment.name);
  return 0;
}

TEST_CASE("mutation: the plan with halves in turns is good") {
  CHECK(Verify(Overlapped(), {}).ok());
  CHECK(Overlapped().lanes == 2);
  CHECK(Overlapped().microbatches == 4);
}

TEST_CASE("mutation: halves in turns") {
  const auto paired = [](Plan& plan) {
    Program& program = plan.stages[0].train;
    return std::find_if(program.begin(), program.end(), [](const Step& step) { return step.paired; }) -
           program.begin();
  };
  Mutate(Overlapped(), "t", "in the same lane", [&](Plan& plan) {
    for (Step& step : plan.stages[0].train) {
      if (step.microbatch == 1) step.slot = 0;
    }
  });
  Mutate(Overlapped(), "t", "cannot run in alternation with",
         [&](Plan& plan) { plan.stages[0].train[static_cast<size_t>(paired(plan)) + 1].paired = true; });
  Mutate(Overlapped(), "t", "cannot run in alternation with", [&](Plan& plan) {
    const auto i = static_cast<size_t>(paired(plan));
    plan.stages[0].train[i + 1].waits = {static_cast<std::int32_t>(i)};
  });
  const auto exchange = [](const Instruction& i) { return i.collective == Collective::kAllGather; };
  const auto computes = [](const Instruction& i) {
    return i.op != nullptr && i.outputs[0].in_lane && i.outputs[0].value >= 0;
  };
  Mutate(Overlapped(), "sm", "is on stream 0, not 5", [&](Plan& plan) {
    Segment& forward = SegmentOf(plan, 0, "forward.0");
    forward.instructions[Find(forward, exchange)].stream = kComputeStream;
  });
  Mutate(Overlapped(), "s", "is on stream 5, not 0", [&](Plan& plan) {
    Segment& forward = SegmentOf(plan, 0, "forward.0");
    forward.instructions[Find(forward, computes)].stream = kExchangeStream;
  });
  Mutate(Overlapped(), "s", "is waited for by nothing", [&](Plan& plan) {
    Segment& forward = SegmentOf(plan, 0, "forward.0");
    forward.instructions[Find(forward, exchange)].detached = true;
  });
  Mutate(Overlapped(), "s", "is not in a lane", [&](Plan& plan) {
    Segment& forward = SegmentOf(plan, 0, "forward.0");
    forward.instructions[Find(forward, computes)].outputs[0].in_lane = false;
  });
  Mutate(Overlapped(), "s", "reaches out of its lane", [&](Plan& plan) { plan.stages[0].lane_bytes /= 2; });
  Mutate(Overlapped(), "s", "overlap slots of chunk 0", [&](Plan& plan) { plan.stages[0].lane_base -= 256; });
  Mutate(Overlapped(), "s", "has no instruction left",
         [&](Plan& plan) { SegmentOf(plan, 0, "forward.0").order.push_back(0); });
  Mutate(Overlapped(), "s", "and lane 1",
         [&](Plan& plan) { SegmentOf(plan, 0, "forward.0").order.pop_back(); });
  Mutate(Overlapped(), "s", "runs in lane 1 before lane 0", [&](Plan& plan) {
    for (std::uint8_t& lane : SegmentOf(plan, 0, "backward.0").order) lane = 1 - lane;
  });
  Mutate(Overlapped(), "s", "lanes at", [&](Plan& plan) { plan.lanes = 1 << 20; });
}

TEST_CASE("mutation: a transient where pushed gradients arrive") {
  Mutate(Good(), "s", "reaches out of its lane", [](Plan& plan) { plan.stages[0].lane_bytes -= 256; });
}

TEST_CASE("mutation: reductions behind the backward pass") {
  const auto reduction = [](const Instruction& i) { return i.flat; };
  const auto in_backward = [&](const std::function<void(Instruction&)>& change) {
    return [&, change](Plan& plan) {
      Segment& backward = SegmentOf(plan, 0, "backward.0");
      change(backward.instructions[Find(backward, reduction)]);
    };
  };
  Mutate(Overlapped(), "g", "is no reduction behind the last backward pass",
         in_backward([](Instruction& i) { i.last_only = false; }));
  Mutate(Overlapped(), "g", "is no reduction behind the last backward pass",
         in_backward([](Instruction& i) { i.detached = false; }));
  Mutate(Overlapped(), "gm", "is no reduction behind the last backward pass",
         in_backward([](Instruction& i) { i.stream = kComputeStream; }));
  Mutate(Overlapped(), "g", "which are already reduced", [&](Plan& plan) {
    Segment& backward = SegmentOf(plan, 0, "backward.0");
    const size_t at = Find(backward, reduction);
    std::swap(backward.instructions[at], backward.instructions[at - 1]);
  });
  Mutate(Overlapped(), "gs", "still partial over dp", [&](Plan& plan) {
    Segment& backward = SegmentOf(plan, 0, "backward.0");
    backward.instructions.erase(backward.instructions.begin() +
                                static_cast<std::ptrdiff_t>(Find(backward, reduction)));
  });
  Mutate(Overlapped(), "gs", "already scattered", [&](Plan& plan) {
    Segment& backward = SegmentOf(plan, 0, "backward.0");
    backward.instructions.push_back(backward.instructions[Find(backward, reduction)]);
  });
  Mutate(Overlapped(), "t", "to which other microbatches have still to add", [&](Plan& plan) {
    // The last pair's backward passes change places with those of the pair before, slots and all.
    std::vector<size_t> backward;
    Program& program = plan.stages[0].train;
    for (size_t i = 0; i < program.size(); ++i) {
      if (program[i].segment == plan.stages[0].chunks[0].backward) backward.push_back(i);
    }
    std::swap(program[backward[2]].microbatch, program[backward[3]].microbatch);
    std::swap(program[backward[2]].slot, program[backward[3]].slot);
  });
}

TEST_CASE("mutation: reductions beside the norm") {
  // The first reduces all of a bucket whose squares are behind those of the early buckets.
  const auto in_update = [](const std::function<bool(const Instruction&)>& wanted,
                            const std::function<void(Instruction&)>& change) {
    return [=](Plan& plan) {
      Segment& update = SegmentOf(plan, 0, "update");
      change(update.instructions[Find(update, wanted)]);
    };
  };
  const auto reduces = [](const Instruction& i) { return i.collective != Collective::kNone; };
  const auto waits = [](const Instruction& i) { return !i.joins.empty(); };
  Mutate(Overlapped(), "g", "and the next waits for it",
         in_update(reduces, [](Instruction& i) { i.detached = false; }));
  Mutate(Overlapped(), "g", "and nothing waits for it",
         in_update(reduces, [](Instruction& i) { i.stream = kComputeStream; }));
  Mutate(Overlapped(), "g", "and nothing waits for it",
         in_update(reduces, [](Instruction& i) { i.last_only = true; }));
  Mutate(Overlapped(), "g", "does not wait for bucket.",
         in_update(waits, [](Instruction& i) { i.joins.clear(); }));
  Mutate(Overlapped(), "g", "which is not under way",
         in_update(waits, [](Instruction& i) { i.joins += "?"; }));
  Mutate(Overlapped(), "g", "runs beside what is reduced", [&](Plan& plan) {
    auto& list = SegmentOf(plan, 0, "update").instructions;
    const size_t first = Find(SegmentOf(plan, 0, "update"), waits);
    const size_t norm = Find(SegmentOf(plan, 0, "update"),
                             [](const Instruction& i) { return i.name == "scalars.all_reduce"; });
    std::swap(list[first], list[norm]);
  });
}

// --------------------------------------------------------------------- sums that are left to their readers

namespace {

// tp 2, with sequence parallelism or without, in halves, pushed by copy engines.
const Plan& LeftToReaders(bool sequence_parallel) {
  static const auto make = [](const char* parallel) {
    absl::StatusOr<Plan> plan = train::CompileUnverified(
        TinyRecipe(true, {"precision.compute=bf16", "model.attention.heads=4", "model.hidden=256",
                          "parallelism.tp=2", parallel, "training.micro_batch=4"}),
        {.profile = backend::cuda::CudaProfile()});
    if (!plan.ok()) FAIL(Message(plan.status()));
    return *std::move(plan);
  };
  static const Plan reduced = make("parallelism.sequence_parallel=false");
  static const Plan scattered = make("parallelism.sequence_parallel=true");
  return sequence_parallel ? scattered : reduced;
}

}  // namespace

TEST_CASE("mutation: sums that are left to their readers") {
  const auto edit = [](const std::function<bool(const Instruction&)>& wanted,
                       const std::function<void(Instruction&)>& change) {
    return [=](Plan& plan) {
      Segment& backward = SegmentOf(plan, 0, "backward.0");
      change(backward.instructions[Find(backward, wanted)]);
    };
  };
  const auto sums = [](const Instruction& i) { return i.unsummed; };
  const auto adds = [](const Instruction& i) { return i.part.elements > 0; };
  for (const bool scattered : {false, true}) {
    CAPTURE(scattered);
    const Plan& good = LeftToReaders(scattered);
    CHECK_MESSAGE(Verify(good, {}).ok(), Message(Verify(good, {})));
    const auto& list = SegmentOf(const_cast<Plan&>(good), 0, "backward.0").instructions;
    CHECK(std::count_if(list.begin(), list.end(), sums) == 16);  // two of each block, each in its half
    CHECK(std::count_if(list.begin(), list.end(), adds) == 16);
    Mutate(good, "s", scattered ? "to another place on each rank" : "overlaps",
           edit(sums, [](Instruction& i) { i.unsummed = false; }));
    Mutate(good, "s", "no pushed sum of two ranks", edit(sums, [](Instruction& i) { i.push = false; }));
    Mutate(good, "s", "is not where this rank's part of it is",
           edit(sums, [](Instruction& i) { i.outputs[0].offset += 256; }));
    Mutate(good, "s", "is not where this rank's part of it is",
           edit(sums, [](Instruction& i) { i.scratch.elements /= 2; }));
    if (scattered) {
      Mutate(good, "s", "is not where this rank's part of it is",
             edit(sums, [](Instruction& i) { i.outputs[0].shard_stride /= 2; }));
      Mutate(good, "s", "overlaps", edit(adds, [](Instruction& i) {  // the part of the other rank
               i.outputs[0].offset = i.inputs[0].offset + i.inputs[0].shard_stride;
             }));
    }
    Mutate(good, "s", "without the other rank's part", edit(adds, [](Instruction& i) { i.part = {}; }));
    Mutate(good, "s", "finds no part of", edit(adds, [](Instruction& i) { i.part.offset += 256; }));
    Mutate(good, "s", "finds no part of", edit(adds, [](Instruction& i) { i.part.elements /= 2; }));
    Mutate(good, "s", "finds no part of", edit(adds, [](Instruction& i) { i.part.in_lane = false; }));
    Mutate(good, "s", "without the other rank's part", edit(adds, [](Instruction& i) { i.part_of = 1; }));
    Mutate(good, "s", "which is whole", [&](Plan& plan) {
      const auto whole = [](const Instruction& i) { return i.op != nullptr && i.part.elements == 0; };
      edit(whole, [](Instruction& i) {
        i.part = i.inputs[0];
        i.part_of = 0;
      })(plan);
    });
    Mutate(good, "s", "adds a part to no input", [&](Plan& plan) {
      const auto whole = [](const Instruction& i) { return i.op != nullptr && i.part.elements == 0; };
      edit(whole, [](Instruction& i) { i.part.elements = 1; })(plan);
    });
    Mutate(good, "s", "where the part is",
           [&](Plan& plan) { edit(adds, [](Instruction& i) { i.scratch.offset = i.part.offset; })(plan); });
  }
}

// ------------------------------------------------------------- parameters gathered when a program begins

namespace {

// dp 4, ZeRO-1, exchange behind computation.
const Plan& AtBegin() {
  static const Plan plan =
      TinyPlan(true, {"parallelism.dp=4", "parallelism.zero_stage=1", "parallelism.overlap=on"});
  return plan;
}

// dp 2 · tp 2, halves in turns, pushed by copy engines.
const Plan& InPasses() {
  static const Plan plan = [] {
    absl::StatusOr<Plan> compiled =
        train::CompileUnverified(TinyRecipe(true, {"precision.compute=bf16", "model.attention.heads=4",
                                                   "model.hidden=256", "parallelism.dp=2", "parallelism.tp=2",
                                                   "parallelism.zero_stage=1", "training.micro_batch=4"}),
                                 {.profile = backend::cuda::CudaProfile()});
    if (!compiled.ok()) FAIL(Message(compiled.status()));
    return *std::move(compiled);
  }();
  return plan;
}

std::int64_t GathersIn(const Plan& plan, const char* segment) {
  const auto& list = SegmentOf(const_cast<Plan&>(plan), 0, segment).instructions;
  return std::count_if(list.begin(), list.end(),
                       [](const Instruction& i) { return i.flat && i.collective == Collective::kAllGather; });
}

}  // namespace

TEST_CASE("mutation: the plan that gathers when a program begins is good") {
  CHECK(Verify(AtBegin(), {}).ok());
  // 8 blocks and the head, of which the first two are gathered behind the update; embedding, and norms.
  CHECK(GathersIn(AtBegin(), "begin") == 7);
  CHECK(GathersIn(AtBegin(), "evaluate_begin") == 7);
  CHECK(GathersIn(AtBegin(), "update") == 4);
  CHECK(Verify(Overlapped(), {}).ok());
  CHECK(GathersIn(Overlapped(), "begin") == 0);  // the exchange's stream is NCCL's
  CHECK_MESSAGE(Verify(InPasses(), {}).ok(), Message(Verify(InPasses(), {})));
  CHECK(InPasses().lanes == 2);
  CHECK(GathersIn(InPasses(), "begin") == 0);  // that of the halves
  CHECK(GathersIn(InPasses(), "forward.0") == 7);
  CHECK(GathersIn(InPasses(), "evaluate.0") == 7);
}

TEST_CASE("mutation: parameters gathered when a program begins") {
  const std::string gather = "all_gather";
  const auto edit = [&](const char* segment, const std::function<void(Instruction&)>& change) {
    return [=](Plan& plan) { change(At(plan, 0, segment, gather, 1)); };
  };
  for (const char* segment : {"begin", "evaluate_begin"}) {
    CAPTURE(segment);
    Mutate(AtBegin(), "z", "which is not under way",
           [&](Plan& plan) { Drop(SegmentOf(plan, 0, segment), gather, 1); });
    Mutate(AtBegin(), "z", "in one microbatch", edit(segment, [](Instruction& i) { i.first_only = true; }));
    Mutate(AtBegin(), "z", "again", [&](Plan& plan) { Double(SegmentOf(plan, 0, segment), gather, 1); });
    Mutate(AtBegin(), "z", "is not the gather of all of", edit(segment, [](Instruction& i) {
             i.inputs[0].elements /= 2;
             i.outputs[0].elements /= 2;
             i.wire_bytes /= 2;
           }));
    Mutate(AtBegin(), "zm", "is not the gather of all of",
           edit(segment, [](Instruction& i) { i.group = AxisSet::Of(Axis::kTp); }));
    Mutate(AtBegin(), "z", "does not gather bucket.",
           edit(segment, [](Instruction& i) { i.detached = false; }));
    Mutate(AtBegin(), "z", "does not gather bucket.",
           edit(segment, [](Instruction& i) { i.stream = kComputeStream; }));
    Mutate(AtBegin(), "z", "gathers no bucket's parameters",
           edit(segment, [](Instruction& i) { i.inputs[0].offset = i.outputs[0].offset = 0; }));
  }
  for (const char* segment : {"forward.0", "evaluate.0"}) {
    CAPTURE(segment);
    const auto waits = [](const Instruction& i) { return !i.joins.empty(); };
    Mutate(AtBegin(), "z", "which is not waited for", [&](Plan& plan) {
      Segment& found = SegmentOf(plan, 0, segment);
      found.instructions[Find(found, waits)].joins.clear();
    });
    Mutate(AtBegin(), "z", "which is not under way", [&](Plan& plan) {
      Segment& found = SegmentOf(plan, 0, segment);
      found.instructions[Find(found, waits)].joins += "?";
    });
  }
  for (const char* segment : {"forward.0", "evaluate.0"}) {
    CAPTURE(segment);
    const Plan& good = InPasses();
    const auto flat = [](const Instruction& i) { return i.flat; };
    const auto at = [=](Plan& plan) {
      auto& list = SegmentOf(plan, 0, segment).instructions;
      return list.begin() + static_cast<std::ptrdiff_t>(Find(SegmentOf(plan, 0, segment), flat));
    };
    const bool halves = segment == std::string("forward.0");  // whose order counts instructions
    Mutate(good, halves ? "zs" : "z", "which is not under way",
           [&](Plan& plan) { SegmentOf(plan, 0, segment).instructions.erase(at(plan)); });
    Mutate(good, halves ? "zs" : "z", "again", [&](Plan& plan) {
      const Instruction gathers = *at(plan);
      SegmentOf(plan, 0, segment).instructions.insert(at(plan), gathers);
    });
    Mutate(good, "z", "in every microbatch", [&](Plan& plan) { at(plan)->first_only = false; });
    Mutate(good, "z", "which is not waited for", [&](Plan& plan) {
      Segment& found = SegmentOf(plan, 0, segment);
      found.instructions[Find(found, [](const Instruction& i) { return !i.joins.empty(); })].joins.clear();
    });
  }
  Mutate(AtBegin(), "t", "before microbatch 0 has gathered them", [](Plan& plan) {
    Program& program = plan.stages[0].evaluate;
    const auto first =
        std::find_if(program.begin(), program.end(), [](const Step& step) { return step.microbatch == 0; });
    std::swap(first->microbatch, (first + 1)->microbatch);
  });
  Mutate(AtBegin(), "g", "nothing to gather", [&](Plan& plan) {
    Segment& update = SegmentOf(plan, 0, "update");
    update.instructions.push_back(At(plan, 0, "begin", gather, 0));
  });
}

// --------------------------------------------------------------------- gradients and parameters in shards

namespace {

// dp 4, ZeRO-3, each block's exchange behind the computation of the one before.
const Plan& InShards() {
  static const Plan plan =
      TinyPlan(true, {"parallelism.dp=4", "parallelism.zero_stage=3", "parallelism.overlap=on"});
  return plan;
}

// Changes the list of a segment's instructions at the nth of a kernel.
std::function<void(Plan&)> ChangeAt(
    const std::string& segment, const std::string& kernel, int nth,
    const std::function<void(std::vector<Instruction>&, std::vector<Instruction>::iterator)>& change) {
  return [=](Plan& plan) {
    Segment& found = SegmentOf(plan, 0, segment);
    change(found.instructions,
           found.instructions.begin() + static_cast<std::ptrdiff_t>(Find(found, kernel, nth)));
  };
}
std::function<void(Plan&)> DropAt(const std::string& segment, const std::string& kernel, int nth = 1) {
  return ChangeAt(segment, kernel, nth, [](auto& list, auto at) { list.erase(at); });
}
std::function<void(Plan&)> EditAt(const std::string& segment, const std::string& kernel,
                                  const std::function<void(Instruction&)>& edit, int nth = 1) {
  return ChangeAt(segment, kernel, nth, [edit](auto&, auto at) { edit(*at); });
}

}  // namespace

TEST_CASE("mutation: the plan in shards is good") {
  CHECK(Verify(InShards(), {}).ok());
  CHECK(std::count_if(InShards().stages[0].buckets.begin(), InShards().stages[0].buckets.end(),
                      [](const Bucket& b) { return b.parameter_shard.elements > 0; }) == 8);
}

TEST_CASE("mutation: gradients in shards") {
  const std::string rs = "reduce_scatter";  // the first is the head's, which is not kept in shards
  const std::string add = "add_shard";
  Mutate(InShards(), "z", "which is not under way", DropAt("backward.0", rs));
  Mutate(InShards(), "z", "what is not its gradients' sum", [&](Plan& plan) {
    EditAt(
        "backward.0", add, [](Instruction& i) { i.joins.clear(); }, 0)(plan);
    DropAt("backward.0", rs)(plan);
  });
  Mutate(InShards(), "z", "no gradients to reduce",
         ChangeAt("backward.0", rs, 1, [](auto& list, auto at) { list.insert(at, Instruction(*at)); }));
  Mutate(InShards(), "z", "are not yet added to their shard", DropAt("backward.0", add));
  Mutate(InShards(), "z", "are not added to their shard", DropAt("backward.0", add, 7));
  Mutate(InShards(), "z", "what is not its gradients' sum",
         ChangeAt("backward.0", add, 1, [](auto& list, auto at) {
           const auto copy = list.insert(at, Instruction(*at));
           (copy + 1)->joins.clear();
         }));
  Mutate(InShards(), "z", "what is not its gradients' sum yet",
         EditAt("backward.0", add, [](Instruction& i) { i.joins.clear(); }));
  Mutate(InShards(), "z", "which is not under way",
         EditAt("backward.0", add, [](Instruction& i) { i.joins += "?"; }));
  Mutate(InShards(), "z", "is not from one buffer to another",
         EditAt("backward.0", add, [](Instruction& i) { i.fresh = 0; }));
  Mutate(InShards(), "z", "is not from one buffer to another",
         EditAt("backward.0", add, [](Instruction& i) { i.accumulate = i.fresh = 0; }));
  Mutate(InShards(), "z", "what is not its gradients' sum",
         EditAt("backward.0", add, [](Instruction& i) { i.inputs[0].shard_stride /= 2; }));
  Mutate(InShards(), "z", "adds to no shard of gradients",
         EditAt("backward.0", add, [](Instruction& i) { i.outputs[0].offset += 4; }));
  Mutate(InShards(), "z", "is not exchanged in every microbatch",
         EditAt("backward.0", rs, [](Instruction& i) { i.last_only = true; }));
  Mutate(InShards(), "z", "is not exchanged in every microbatch",
         EditAt("backward.0", rs, [](Instruction& i) { i.detached = false; }));
  Mutate(InShards(), "z", "reduce of what is kept in shards", EditAt("backward.0", rs, [](Instruction& i) {
           i.collective = Collective::kAllReduce;
           i.kernel = "all_reduce";
           i.wire_bytes *= 2;
         }));
  Mutate(InShards(), "z", "not over",
         EditAt("backward.0", rs, [](Instruction& i) { i.reduction = graph::Reduction::kMax; }));
  // A gradient is made behind the reduction, or not from nothing.
  Mutate(InShards(), "z", "which are already reduced",
         ChangeAt("backward.0", rs, 1, [](auto&, auto at) { std::iter_swap(at, at - 1); }));
  Mutate(InShards(), "z", "adds to what was in the buffer of",
         EditAt("backward.0", "linear_wgrad", [](Instruction& i) { i.accumulate = 1; }));
  Mutate(InShards(), "z", "adds to what was in the buffer of",
         EditAt("backward.0", "linear_wgrad", [](Instruction& i) { i.accumulate = i.fresh = 1; }));
  Mutate(InShards(), "g", "not its shard",
         EditAt(
             "update", "adamw", [](Instruction& i) { i.inputs[1].elements /= 2; }, 0));
  Mutate(InShards(), "c", "gradients of a rank", [](Plan& plan) {
    for (Bucket& bucket : plan.stages[0].buckets) {
      if (bucket.gradient_shard.elements > 0) bucket.gradient_shard.dtype = DType::kBF16;
    }
    for (const char* segment : {"backward.0", "update"}) {
      for (Instruction& i : SegmentOf(plan, 0, segment).instructions) {
        if (i.kernel == "add_shard") i.outputs[0].dtype = DType::kBF16;
        for (BufferRef& ref : i.inputs) {
          for (const Bucket& bucket : plan.stages[0].buckets) {
            if (bucket.gradient_shard.elements > 0 && ref.offset == bucket.gradient_shard.offset)
              ref.dtype = DType::kBF16;
          }
        }
      }
    }
  });
}

TEST_CASE("mutation: parameters in shards") {
  const std::string gather = "all_gather";
  for (const char* segment : {"forward.0", "backward.0", "evaluate.0"}) {
    CAPTURE(segment);
    Mutate(InShards(), "z", "which is not under way", DropAt(segment, gather));
    Mutate(InShards(), "z", "which is not gathered", [&](Plan& plan) {
      const std::string dropped = At(plan, 0, segment, gather, 1).name;
      DropAt(segment, gather)(plan);
      for (Instruction& i : SegmentOf(plan, 0, segment).instructions) {
        if (i.joins == dropped) i.joins.clear();
      }
    });
    Mutate(InShards(), "z", "no shard to gather", DropAt(segment, "copy"));
    Mutate(InShards(), "z", "which is not waited for", [&](Plan& plan) {
      int left = 1;
      for (Instruction& i : SegmentOf(plan, 0, segment).instructions) {
        if (i.kernel != "add_shard" && !i.joins.empty() && left-- == 0) i.joins.clear();
      }
    });
    Mutate(InShards(), "z", "but its buffer holds bucket.", [&](Plan& plan) {
      // The third block is gathered before the first is done with.
      auto& list = SegmentOf(plan, 0, segment).instructions;
      const auto at = [&](const char* kernel, int nth) {
        return list.begin() + static_cast<std::ptrdiff_t>(Find(SegmentOf(plan, 0, segment), kernel, nth));
      };
      std::rotate(at("copy", 1), at("copy", 2), at("copy", 2) + 2);
    });
    Mutate(InShards(), "z", "is not exchanged in every microbatch",
           EditAt(segment, gather, [](Instruction& i) { i.last_only = true; }));
    Mutate(InShards(), "z", "puts the shard of bucket.",
           EditAt(segment, "copy", [](Instruction& i) { i.outputs[0].shard_stride += 4; }));
    Mutate(InShards(), "z", "copies no shard of parameters",
           EditAt(segment, "copy", [](Instruction& i) { i.inputs[0].offset += 4; }));
  }
  Mutate(InShards(), "zm", "not over",
         EditAt("forward.0", gather, [](Instruction& i) { i.group = AxisSet::Of(Axis::kTp); }));
  Mutate(InShards(), "cgz", "parameters of a rank", [](Plan& plan) {
    for (Bucket& bucket : plan.stages[0].buckets) {
      if (bucket.parameter_shard.elements > 0) bucket.parameter_shard.elements -= 128;
    }
  });
  Mutate(InShards(), "g", "does not update the weights",
         EditAt(
             "update", "adamw", [](Instruction& i) { i.outputs[0].offset += 4; }, 0));
  Mutate(InShards(), "sgz", "overlaps", [](Plan& plan) {
    for (Bucket& bucket : plan.stages[0].buckets) {
      if (bucket.gradient_shard.elements > 0) bucket.gradient_shard.offset = bucket.gradient.offset;
    }
  });
}

TEST_CASE("mutation: shards that copy engines push") {
  const recipe::Recipe recipe =
      TinyRecipe(true, {"precision.compute=bf16", "model.attention.heads=4", "model.hidden=256",
                        "parallelism.dp=2", "parallelism.zero_stage=3", "parallelism.overlap=on"});
  absl::StatusOr<Plan> plan = train::CompileUnverified(recipe, {.profile = backend::cuda::CudaProfile()});
  if (!plan.ok()) FAIL(Message(plan.status()));
  CHECK_MESSAGE(Verify(*plan, {}).ok(), Message(Verify(*plan, {})));
  CHECK(At(*plan, 0, "backward.0", "all_gather").push);
  CHECK(At(*plan, 0, "backward.0", "reduce_scatter", 1).push);
  CHECK(At(*plan, 0, "update", "reduce_scatter").push);
  Mutate(*plan, "g", "also where pushed gradients arrive", [](Plan& mutated) {
    At(mutated, 0, "update", "reduce_scatter", 1).scratch.offset =
        At(mutated, 0, "update", "reduce_scatter", 0).scratch.offset;
  });
  Mutate(*plan, "g", "not behind the lanes",
         EditAt("backward.0", "reduce_scatter", [](Instruction& i) { i.scratch.offset = 0; }));
}

// ----------------------------------------------------------------------------- weights passes of their own

namespace {

// dp 2 · pp 2 with ZeRO-1, gradients of weights deferred and reduced behind the last weights pass.
const Plan& ZeroBubblePlan() {
  static const Plan plan = TinyPlan(true, {"parallelism.dp=2", "parallelism.pp=2", "parallelism.zero_stage=1",
                                           "parallelism.overlap=on", "parallelism.schedule=zero_bubble"});
  return plan;
}

// The training step that runs this segment of the stage's chunk on a microbatch.
size_t StepOf(const Plan& plan, size_t stage, std::int32_t Chunk::*segment, std::int32_t microbatch) {
  const StagePlan& found = plan.stages[stage];
  for (size_t i = 0; i < found.train.size(); ++i) {
    const Step& step = found.train[i];
    if (step.kind == StepKind::kRun && step.segment == found.chunks[0].*segment &&
        step.microbatch == microbatch)
      return i;
  }
  FAIL("no such step");
  return 0;
}

// Two microbatches change places in the passes of one segment, slots and all.
void SwapTurns(Plan& plan, size_t stage, std::int32_t Chunk::*segment, std::int32_t a, std::int32_t b) {
  Program& program = plan.stages[stage].train;
  Step& first = program[StepOf(plan, stage, segment, a)];
  Step& second = program[StepOf(plan, stage, segment, b)];
  std::swap(first.microbatch, second.microbatch);
  std::swap(first.slot, second.slot);
}

}  // namespace

TEST_CASE("mutation: the zero-bubble plan itself is good") {
  CHECK(Verify(ZeroBubblePlan(), {}).ok());
  for (const StagePlan& stage : ZeroBubblePlan().stages) CHECK(stage.chunks[0].slots == 2);
}

TEST_CASE("mutation: turns of weights passes") {
  // Stage 0 runs F0 F1 B0 W0 F2 B1 W1 …, stage 1 F0 B0 F1 B1 W0 F2 B2 W1 ….
  Mutate(ZeroBubblePlan(), "t", "microbatch 1 has not passed backward through chunk 0",
         [](Plan& plan) { SwapTurns(plan, 0, &Chunk::weights, 0, 1); });
  Mutate(ZeroBubblePlan(), "t", "microbatch 2 has not passed forward through chunk 1",
         [](Plan& plan) { plan.stages[1].train[StepOf(plan, 1, &Chunk::weights, 0)].microbatch = 2; });
  Mutate(ZeroBubblePlan(), "t", "microbatch 0 has already passed chunk 1",
         [](Plan& plan) { plan.stages[1].train[StepOf(plan, 1, &Chunk::weights, 1)].microbatch = 0; });
  Mutate(ZeroBubblePlan(), "t", "microbatch 7 passes chunk 0 without making the gradients of weights",
         [](Plan& plan) { Erase(&plan.stages[0].train, StepOf(plan, 0, &Chunk::weights, 7)); });
  Mutate(ZeroBubblePlan(), "t", "which microbatch 3 still holds",
         [](Plan& plan) { Erase(&plan.stages[0].train, StepOf(plan, 0, &Chunk::weights, 3)); });
  // On stage 1, W0 and W1 change places: both have passed backward by then.
  Mutate(ZeroBubblePlan(), "t", "before microbatch 0 has overwritten those of the iteration before",
         [](Plan& plan) { SwapTurns(plan, 1, &Chunk::weights, 0, 1); });
  Mutate(ZeroBubblePlan(), "t", "to which other microbatches have still to add",
         [](Plan& plan) { SwapTurns(plan, 1, &Chunk::weights, 6, 7); });
}

TEST_CASE("mutation: slots that weights passes still read") {
  // Microbatch 1 takes the slot of microbatch 0, which has passed backward.
  Mutate(ZeroBubblePlan(), "t", "of chunk 1, which microbatch 0 still holds", [](Plan& plan) {
    for (Step& step : plan.stages[1].train) {
      if (step.microbatch == 1 && step.slot >= 0) step.slot = 0;
    }
  });
  Mutate(ZeroBubblePlan(), "t", "takes slot 0 of chunk 1, which microbatch 0 still holds",
         [](Plan& plan) { plan.stages[1].train[StepOf(plan, 1, &Chunk::forward, 1)].slot = 0; });
  Mutate(ZeroBubblePlan(), "t", "holds microbatch 1",
         [](Plan& plan) { plan.stages[1].train[StepOf(plan, 1, &Chunk::weights, 0)].slot = 1; });
  // What is received for microbatch 2 waits for the backward pass of microbatch 0 only.
  Mutate(ZeroBubblePlan(), "t", "writes into the slot that stage 1 train step", [](Plan& plan) {
    Program& program = plan.stages[1].train;
    const auto weights = static_cast<std::int32_t>(StepOf(plan, 1, &Chunk::weights, 0));
    const auto backward = static_cast<std::int32_t>(StepOf(plan, 1, &Chunk::backward, 0));
    for (Step& step : program) {
      if (step.kind == StepKind::kReceive && step.microbatch == 2)
        std::replace(step.waits.begin(), step.waits.end(), weights, backward);
    }
  });
  Mutate(ZeroBubblePlan(), "t", "writes into slot 0 of chunk 0, which is free", [](Plan& plan) {
    for (Step& step : plan.stages[0].train) {
      const bool gradient = step.kind == StepKind::kReceive && step.microbatch == 7;
      if (gradient && step.stream == kReceiveNext) step.slot = 0;
    }
  });
  // The gradient that stage 1 sends goes where no microbatch, or another one, has its activations.
  for (const auto& [slot, text] :
       {std::pair(0, "which microbatch 2 still holds"), std::pair(9, "no slot 9")}) {
    Mutate(ZeroBubblePlan(), "t", text, [slot = slot](Plan& plan) {
      for (Step& step : plan.stages[0].train) {
        const bool gradient = step.kind == StepKind::kReceive && step.microbatch == 1;
        if (gradient && step.stream == kReceiveNext) step.slot = slot;
      }
    });
  }
}

TEST_CASE("mutation: what weights passes read") {
  const auto refs_of = [](Segment& segment, std::int32_t value) {
    std::vector<BufferRef*> refs;
    for (Instruction& instruction : segment.instructions) {
      for (auto* list : {&instruction.inputs, &instruction.outputs}) {
        for (BufferRef& ref : *list) {
          if (ref.value == value) refs.push_back(&ref);
        }
      }
    }
    return refs;
  };
  // A transient of the backward pass lies where it left what the weights pass reads.
  Mutate(ZeroBubblePlan(), "s", "weights.0 #", [&](Plan& plan) {
    Segment& backward = SegmentOf(plan, 0, "backward.0");
    const Instruction& wgrad = At(plan, 0, "weights.0", "linear_wgrad");
    const BufferRef saved = wgrad.inputs[1];
    REQUIRE(saved.in_slot);
    REQUIRE(refs_of(backward, saved.value).empty());
    const size_t i = Find(backward, [&](const Instruction& instruction) {
      const BufferRef& output = instruction.outputs[0];
      return output.value >= 0 && !output.in_slot && output.bytes() <= saved.bytes() &&
             plan.values[static_cast<size_t>(output.value)].kind == graph::ValueKind::kActivation &&
             instruction.op->in_place_input < 0;
    });
    for (BufferRef* ref : refs_of(backward, backward.instructions[i].outputs[0].value)) {
      ref->offset = saved.offset;
      ref->in_slot = true;
    }
  });
  // A gradient that the backward pass makes for the weights pass lies among the transients.
  Mutate(ZeroBubblePlan(), "s", "before it is written", [&](Plan& plan) {
    Segment& backward = SegmentOf(plan, 0, "backward.0");
    Segment& weights = SegmentOf(plan, 0, "weights.0");
    const std::int32_t dy = weights.instructions[Find(weights, "linear_wgrad", 1)].inputs[0].value;
    const std::int64_t bytes = plan.values[static_cast<size_t>(dy)].local_bytes();
    StagePlan& stage = plan.stages[0];
    REQUIRE(!refs_of(backward, dy).empty());
    for (Segment* segment : {&backward, &weights}) {
      for (BufferRef* ref : refs_of(*segment, dy)) {
        ref->offset = stage.lane_base + stage.lane_bytes;
        ref->in_slot = false;
      }
    }
    stage.lane_bytes += bytes;
    stage.arena_bytes += bytes;
  });
  Mutate(ZeroBubblePlan(), "s", "before it is written", [](Plan& plan) {
    // A product for weights reads what the backward pass has in a buffer of the pipeline, not in the slot.
    Segment& weights = SegmentOf(plan, 1, "weights.1");
    BufferRef& dy = weights.instructions[Find(weights, "linear_wgrad")].inputs[0];
    dy.in_slot = false;
  });
}

TEST_CASE("mutation: gradients of weights passes") {
  Mutate(ZeroBubblePlan(), "g", "add to its gradient 0 times",
         [](Plan& plan) { Drop(SegmentOf(plan, 0, "weights.0"), "linear_wgrad"); });
  Mutate(ZeroBubblePlan(), "g", "add to its gradient 2 times",
         [](Plan& plan) { Double(SegmentOf(plan, 0, "weights.0"), "linear_wgrad"); });
  Mutate(ZeroBubblePlan(), "g", "adds to the gradient of the iteration before",
         [](Plan& plan) { At(plan, 1, "weights.1", "linear_wgrad").fresh = 0; });
  Mutate(ZeroBubblePlan(), "s", "overwrites the sum",
         [](Plan& plan) { At(plan, 1, "weights.1", "linear_wgrad").accumulate = 0; });
  const auto reduction = [](const Instruction& i) { return i.flat; };
  Mutate(ZeroBubblePlan(), "g", "which are already reduced", [&](Plan& plan) {
    Segment& weights = SegmentOf(plan, 0, "weights.0");
    const size_t at = Find(weights, reduction);
    std::swap(weights.instructions[at], weights.instructions[at - 1]);
  });
  // Reduced behind the last backward pass, before the weights pass has added.
  Mutate(ZeroBubblePlan(), "g", "which are already reduced", [&](Plan& plan) {
    Segment& weights = SegmentOf(plan, 0, "weights.0");
    const auto at = weights.instructions.begin() + static_cast<std::ptrdiff_t>(Find(weights, reduction));
    SegmentOf(plan, 0, "backward.0").instructions.push_back(*at);
    weights.instructions.erase(at);
  });
  Mutate(ZeroBubblePlan(), "g", "is no reduction behind the last backward pass", [&](Plan& plan) {
    Segment& weights = SegmentOf(plan, 0, "weights.0");
    weights.instructions[Find(weights, reduction)].last_only = false;
  });
}

TEST_CASE("verify: an arena that does not fit is itemised, with a remedy") {
  const Plan plan = TinyPlan(false, {"parallelism.dp=2"});
  const absl::Status status =
      VerifyMemory(plan, {.memory_bytes = plan.stages[0].arena_bytes + 99, .reserved_bytes = 100});
  CHECK(absl::IsResourceExhausted(status));
  for (const char* part : {"stage 0 needs an arena of", "less 100 B reserved", "parameters", "gradients",
                           "optimizer", "activations", "zero_stage = 1 would save"}) {
    CHECK_MESSAGE(Message(status).find(part) != std::string::npos, Message(status));
  }
  CHECK(VerifyMemory(plan, {.memory_bytes = plan.stages[0].arena_bytes + 100, .reserved_bytes = 100}).ok());
  CHECK(VerifyMemory(plan, {}).ok());
}

}  // namespace engine::plan
