// Every check of the verifier can fail: a good plan is broken in one place, and the checks meant for it
// report it.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "engine/backend/cuda/profile/profile.h"
#include "tests/verify/mutations.h"

namespace engine::verify {

TEST_CASE("mutation: the plan itself is good") { CHECK(Verify(Good(), {}).ok()); }

TEST_CASE("mutation: sends and receives") {
  Mutate(Good(), "mt", "has no send on stage 0", [](plan::Plan& plan) {
    plan::Program& program = plan.stages[0].programs[0];
    Erase(&program, FindStep(program, plan::StepKind::kSend, 2));
  });
  Mutate(Good(), "mt", "has no receive on stage 1", [](plan::Plan& plan) {
    plan::Program& program = plan.stages[1].programs[0];
    Erase(&program, FindStep(program, plan::StepKind::kReceive, 2));
  });
  Mutate(Good(), "tm", "repeats stage 0 train step", [](plan::Plan& plan) {
    plan::Program& program = plan.stages[0].programs[0];
    const plan::Step copy = program[FindStep(program, plan::StepKind::kSend)];
    program.insert(program.end() - 1, copy);
    program[program.size() - 2].microbatch = 7;
    program[program.size() - 2].waits.clear();
  });
  Mutate(Good(), "ms", "its buffer has", [](plan::Plan& plan) {
    plan.stages[1]
        .programs[0][FindStep(plan.stages[1].programs[0], plan::StepKind::kReceive)]
        .buffer.elements -= 1;
  });
  // Microbatches 0 and 1 change places where they are received: the wrong one is read, and the streams cross.
  Mutate(Good(), "mt", "the order of sends is not that of receives", [](plan::Plan& plan) {
    plan::Program& program = plan.stages[1].programs[0];
    std::swap(program[FindStep(program, plan::StepKind::kReceive, 0)].microbatch,
              program[FindStep(program, plan::StepKind::kReceive, 1)].microbatch);
  });
  Mutate(Good(), "tm", "does not wait for it", [](plan::Plan& plan) {
    plan::Program& program = plan.stages[1].programs[0];
    const plan::Step copy = program[FindStep(program, plan::StepKind::kReceive)];
    program.insert(program.end() - 1, copy);
    program[program.size() - 2].microbatch = 7;
    program[program.size() - 2].waits.clear();
  });
  Mutate(Good(), "mt", "the order of sends is not that of receives", [](plan::Plan& plan) {
    plan::Program& program = plan.stages[0].programs[0];
    std::swap(program[FindStep(program, plan::StepKind::kSend, 0)].microbatch,
              program[FindStep(program, plan::StepKind::kSend, 1)].microbatch);
  });
  // A stage sends what the other one makes.
  Mutate(Good(), "mst", "belongs to stage 1", [](plan::Plan& plan) {
    plan::Program& program = plan.stages[0].programs[0];
    plan::Step& send = program[FindStep(program, plan::StepKind::kSend)];
    send.transfer = program[FindStep(program, plan::StepKind::kReceive)].transfer;
    send.stream = plan::kSendPrevious;
  });
}

TEST_CASE("mutation: doubled and dropped accumulations") {
  const auto twice = [](plan::Plan& plan, int stage, const char* segment, const char* kernel) {
    plan::Segment& found = SegmentOf(plan, stage, segment);
    const size_t at = Find(found, kernel);
    const plan::Instruction copy = found.instructions[at];
    found.instructions.insert(found.instructions.begin() + static_cast<std::ptrdiff_t>(at), copy);
  };
  Mutate(Good(), "g", "add to its gradient 2 times",
         [&](plan::Plan& plan) { twice(plan, 1, "backward.1", "linear_wgrad"); });
  Mutate(Good(), "g", "adds to the loss 2 times, not 1",
         [&](plan::Plan& plan) { twice(plan, 1, "forward.1", "loss_sum"); });
  Mutate(Good(), "g", "adds to the loss 0 times, not 1",
         [](plan::Plan& plan) { Drop(SegmentOf(plan, 1, "evaluate.1"), "loss_sum"); });
  Mutate(Good(), "s", "instructions, but", [&](plan::Plan& plan) { twice(plan, 0, "begin", "zero"); });
}

TEST_CASE("mutation: deadlocks") {
  // The sums of the scalars and of the tied gradients change places on one stage.
  Mutate(Good(), "mg", "stage 0", [](plan::Plan& plan) {
    plan::Segment& update = SegmentOf(plan, 0, "update");
    std::swap(update.instructions[Find(update, "all_reduce", 0)],
              update.instructions[Find(update, "all_reduce", 1)]);
  });
  // Both stages first want to receive.
  Mutate(Good(), "mt", "deadlock: stage 0 waits at train step 1 (receive", [](plan::Plan& plan) {
    plan::Program& program = plan.stages[0].programs[0];
    const size_t receive = FindStep(program, plan::StepKind::kReceive);
    plan::Step step = program[receive];
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
         [](plan::Plan& plan) { Drop(SegmentOf(plan, 1, "update"), "all_reduce", 0); });
  Mutate(Good(), "mg",
         "(all_reduce of f64[1]) meets stage 0 evaluate_end #0 scalars.all_reduce (all_reduce of f64[2])",
         [](plan::Plan& plan) {
           plan::Instruction& sum = At(plan, 1, "evaluate_end", "all_reduce");
           sum.inputs[0].elements = sum.outputs[0].elements = 1;
           sum.AsExchange()->wire_bytes /= 2;
         });
  Mutate(Good(), "mg", "which has ended",
         [](plan::Plan& plan) { Drop(SegmentOf(plan, 1, "evaluate_end"), "all_reduce"); });
  Mutate(Good(), "m", "it counts",
         [](plan::Plan& plan) { At(plan, 0, "forward.0", "all_gather").AsExchange()->wire_bytes += 1; });
}

TEST_CASE("mutation: waits") {
  Mutate(Good(), "t", "does not wait for stage 1 train step", [](plan::Plan& plan) {
    plan::Program& program = plan.stages[1].programs[0];
    for (plan::Step& step : program) {
      if (step.kind == plan::StepKind::kRun) step.waits.clear();
    }
  });
  Mutate(Good(), "t", "which writes what it sends", [](plan::Plan& plan) {
    plan::Program& program = plan.stages[0].programs[0];
    program[FindStep(program, plan::StepKind::kSend)].waits.clear();
  });
  Mutate(Good(), "t", "overwrites the buffer that", [](plan::Plan& plan) {
    for (plan::Step& step : plan.stages[0].programs[0]) {
      if (step.kind != plan::StepKind::kRun) continue;
      std::erase_if(step.waits, [&](std::int32_t wait) {
        return plan.stages[0].programs[0][static_cast<size_t>(wait)].kind == plan::StepKind::kSend;
      });
    }
  });
  Mutate(Good(), "t", "and does not wait for it", [](plan::Plan& plan) {
    for (plan::Step& step : plan.stages[1].programs[0]) {
      if (step.kind == plan::StepKind::kReceive) step.waits.clear();
    }
  });
  Mutate(Good(), "tsm", "is not before it",
         [](plan::Plan& plan) { plan.stages[0].programs[0][1].waits = {50}; });
}

TEST_CASE("mutation: slots and turns") {
  Mutate(Good(), "t", "which microbatch 0 still holds", [](plan::Plan& plan) {
    int seen = 0;
    for (plan::Step& step : plan.stages[0].programs[0]) {
      if (step.kind == plan::StepKind::kRun && step.microbatch == 1 && seen++ == 0) step.slot = 0;
    }
  });
  Mutate(Good(), "t", "uses slot 9 of 2", [](plan::Plan& plan) {
    plan.stages[0].programs[0][FindStep(plan.stages[0].programs[0], plan::StepKind::kRun, 1)].slot = 9;
  });
  // The backward pass of one microbatch reads another's activations.
  Mutate(Good(), "t", "holds microbatch", [](plan::Plan& plan) {
    for (plan::Step& step : plan.stages[0].programs[0]) {
      const bool backward = step.kind == plan::StepKind::kRun && step.chunk == 0 &&
                            step.segment == plan.stages[0].chunks[0].train().backward;
      if (backward && step.microbatch == 0) step.slot = 1;
    }
  });
  Mutate(Good(), "t", "has already passed", [](plan::Plan& plan) {
    plan.stages[0].programs[0][FindStep(plan.stages[0].programs[0], plan::StepKind::kRun, 2)].microbatch = 0;
  });
  Mutate(Good(), "t", "starts with begin", [](plan::Plan& plan) {
    plan::Program& program = plan.stages[1].programs[0];
    program[FindStep(program, plan::StepKind::kRun)].segment = plan.stages[1].chunks[0].train().forward;
    program[FindStep(program, plan::StepKind::kRun)].microbatch = 0;
  });
}

TEST_CASE("mutation: buffers inside a segment") {
  Mutate(Good(), "s", "before it is written",
         [](plan::Plan& plan) { Drop(SegmentOf(plan, 0, "forward.0"), "qkv_split"); });
  Mutate(Good(), "s", "before it is written", [](plan::Plan& plan) {
    plan::Segment& forward = SegmentOf(plan, 0, "forward.0");
    const size_t i = Find(forward, "linear", 2);
    std::swap(forward.instructions[i], forward.instructions[i + 1]);
  });
  // A lifetime cut short: a transient is put where another one still lives.
  Mutate(Good(), "s", "whose bytes hold what forward.0 #", [](plan::Plan& plan) {
    plan::Segment& forward = SegmentOf(plan, 0, "forward.0");
    for (size_t i = 0; i + 1 < forward.instructions.size(); ++i) {
      plan::Instruction& instruction = forward.instructions[i];
      if (instruction.kernel() != "dropout" ||
          instruction.name.find("layers.0.attention") == std::string::npos)
        continue;
      // The residual stream, which the add after it still reads.
      const plan::BufferRef residual = forward.instructions[i + 1].inputs[0];
      for (plan::Instruction& reader : forward.instructions) {
        for (plan::BufferRef& ref : reader.inputs) {
          if (ref.value == instruction.outputs[0].value)
            ref = {ref.value, residual.offset, ref.elements, ref.dtype, residual.in_slot};
        }
      }
      const plan::BufferRef old = instruction.outputs[0];
      instruction.outputs[0] = {old.value, residual.offset, old.elements, old.dtype, residual.in_slot};
      return;
    }
  });
  Mutate(Good(), "s", "but a slot has", [](plan::Plan& plan) {
    for (plan::Chunk& chunk : plan.stages[1].chunks) {
      chunk.slot_bytes -= 256;
    }
  });
  Mutate(Good(), "s", "overlaps staged inputs of chunk 0",
         [](plan::Plan& plan) { plan.stages[0].chunks[0].slot_base -= 256; });
  Mutate(Good(), "s", "a staging buffer of",
         [](plan::Plan& plan) { plan.stages[0].chunks[0].staged.elements -= 1; });
  Mutate(Good(), "s", "lies at",
         [](plan::Plan& plan) { At(plan, 0, "forward.0", "linear").inputs[1].offset += 64; });
  Mutate(Good(), "s", "overwrites the sum",
         [](plan::Plan& plan) { At(plan, 0, "backward.0", "linear_wgrad").AsKernel()->accumulate = 0; });
  Mutate(Good(), "s", "its buffer f32[",
         [](plan::Plan& plan) { At(plan, 0, "forward.0", "linear").inputs[0].elements /= 2; });
  Mutate(Good(), "s", "outside of the arena", [](plan::Plan& plan) {
    plan::Instruction& norm = At(plan, 0, "evaluate.0", "layer_norm");
    norm.scratch = {.offset = plan.stages[0].arena_bytes, .elements = 64, .dtype = DType::kU8};
  });
  Mutate(Good(), "s", "its scratch at", [](plan::Plan& plan) {
    plan::Instruction& linear = At(plan, 0, "evaluate.0", "linear");
    linear.scratch = {.offset = linear.outputs[0].offset, .elements = 64, .dtype = DType::kU8};
  });
  Mutate(Good(), "g", "adds to the gradient of the iteration before",
         [](plan::Plan& plan) { At(plan, 0, "backward.0", "linear_wgrad").AsKernel()->fresh = 0; });
  Mutate(Good(), "s", "overwrites the sum loss in the first microbatch",
         [](plan::Plan& plan) { At(plan, 1, "forward.1", "loss_sum").AsKernel()->fresh = 1; });
  Mutate(Good(), "s", "does not zero the scalars",
         [](plan::Plan& plan) { Drop(SegmentOf(plan, 1, "evaluate_begin"), "zero"); });
}

TEST_CASE("mutation: placements") {
  Mutate(Good(), "p", "a conversion along dp changes", [](plan::Plan& plan) {
    At(plan, 0, "forward.0", "all_gather").AsConversion()->axis = graph::Axis::kDp;
  });
  Mutate(Good(), "pm", "is all_gather, not all_to_all", [](plan::Plan& plan) {
    plan::Instruction& gather = At(plan, 0, "forward.0", "all_gather");
    gather.AsConversion()->collective = plan::Collective::kAllToAll;
  });
  Mutate(Good(), "p", "uses another reduction", [](plan::Plan& plan) {
    for (plan::Instruction& instruction : SegmentOf(plan, 1, "forward.1").instructions) {
      if (instruction.collective() == plan::Collective::kAllReduce)
        instruction.AsExchange()->reduction = graph::Reduction::kSum;
    }
  });
  // A norm's weight is partial, in all programs or in one.
  Mutate(Good(), "pc", "is no lawful placement of layer_norm", [](plan::Plan& plan) {
    const plan::Instruction& norm = At(plan, 0, "forward.0", "layer_norm");
    const std::string weight = plan.values[static_cast<size_t>(norm.inputs[1].value)].name;
    for (plan::LocalValue& value : plan.values) {
      if (value.name == weight) value.layout.Set(graph::Axis::kDp, graph::Placement::P());
    }
  });
  Mutate(Good(), "pc", "has the layouts dp:P and R", [](plan::Plan& plan) {
    const plan::Instruction& norm = At(plan, 0, "forward.0", "layer_norm");
    plan.values[static_cast<size_t>(norm.inputs[1].value)].layout.Set(graph::Axis::kDp,
                                                                      graph::Placement::P());
  });
  Mutate(Good(), "p", "on a rank", [](plan::Plan& plan) {
    const plan::Instruction& norm = At(plan, 0, "evaluate.0", "layer_norm");
    plan.values[static_cast<size_t>(norm.outputs[1].value)].layout.Set(graph::Axis::kTp,
                                                                       graph::Placement::R());
  });
}

// Along cp the sequence is split outside of what tp cuts of it.
TEST_CASE("mutation: an exchange along an axis within which another one cuts") {
  const plan::Plan good =
      plan::TinyPlan(false, {"parallelism.tp=2", "parallelism.cp=2", "parallelism.sequence_parallel=true"});
  Mutate(good, "p", "reaches inside another axis' split", [](plan::Plan& plan) {
    plan::Instruction& gather = At(plan, 0, "forward.0", "all_gather");
    const plan::LocalValue& from = plan.values[static_cast<size_t>(gather.inputs[0].value)];
    REQUIRE(from.layout.ToString() == "tp:S(1) cp:S(1)");
    plan::Layout within(from.layout.dims());
    REQUIRE(within.Set(graph::Axis::kTp, graph::Placement::S(1)));
    plan.values[static_cast<size_t>(gather.outputs[0].value)].layout = within;
    gather.AsConversion()->axis = graph::Axis::kCp;
  });
}

TEST_CASE("mutation: dims that an axis may not split") {
  // As the tokens of a model whose first dim were no samples.
  Mutate(Good(), "p", "splits no such dim", [](plan::Plan& plan) {
    plan::Layout layout({graph::Dim::kFeature, graph::Dim::kCausalSequence});
    REQUIRE(layout.Set(graph::Axis::kDp, graph::Placement::S(0)));
    for (plan::LocalValue& value : plan.values) {
      if (value.name == "tokens") value.layout = layout;
    }
  });
}

TEST_CASE("mutation: gradients") {
  const auto update = [](plan::Plan& plan) -> plan::Segment& { return SegmentOf(plan, 0, "update"); };
  Mutate(Good(), "gm", "before they are summed over the tie",
         [&](plan::Plan& plan) { Drop(update(plan), "all_reduce", 0); });
  Mutate(Good(), "gm", "(or no longer) to be summed over the tie",
         [&](plan::Plan& plan) { Double(update(plan), "all_reduce", 0); });
  Mutate(Good(), "g", "which are still partial over",
         [&](plan::Plan& plan) { Drop(update(plan), "reduce_scatter", 0); });
  Mutate(Good(), "g", "are already scattered",
         [&](plan::Plan& plan) { Double(update(plan), "reduce_scatter", 1); });
  Mutate(Good(), "gm", "but they are partial over", [&](plan::Plan& plan) {
    plan::Instruction& scatter = At(plan, 0, "update", "reduce_scatter");
    scatter.AsBucketExchange()->group = plan::AxisSet::Of(graph::Axis::kCp);
  });
  Mutate(Good(), "g", "is never updated", [&](plan::Plan& plan) {
    Drop(update(plan), "adamw", 1);
    Drop(update(plan), "all_gather", 1);
  });
  Mutate(Good(), "g", "is updated twice", [&](plan::Plan& plan) { Double(update(plan), "adamw", 1); });
  Mutate(Good(), "g", "stage 0 sums embedding.tokens by all_reduce reduce_scatter, stage 1 by",
         [](plan::Plan& plan) {
           plan::Exchange& sum = *At(plan, 1, "update", "reduce_scatter").AsExchange();
           sum.collective = plan::Collective::kAllReduce;
           sum.wire_bytes *= 2;
         });
  Mutate(Good(), "g", "never gathered", [&](plan::Plan& plan) { Drop(update(plan), "all_gather", 0); });
  Mutate(Good(), "g", "nothing to gather", [&](plan::Plan& plan) { Double(update(plan), "all_gather", 0); });
  Mutate(Good(), "g", "the norm is summed before that of bucket.0",
         [&](plan::Plan& plan) { Drop(update(plan), "sum_squares", 0); });
  Mutate(Good(), "g", "is counted twice in the norm",
         [&](plan::Plan& plan) { Double(update(plan), "sum_squares", 0); });
  Mutate(Good(), "gm", "loss and norm are summed twice",
         [&](plan::Plan& plan) { Double(update(plan), "all_reduce", 1); });
  // Without sequence parallelism tp repeats the gradients of norms.
  const plan::Plan repeated = plan::TinyPlan(false, {"parallelism.tp=2"});
  Mutate(repeated, "g", "but counted on the first of", [&](plan::Plan& plan) {
    for (plan::Instruction& instruction : update(plan).instructions) {
      if (plan::Kernel* kernel = instruction.AsKernel()) kernel->only_first = {};
    }
  });
  Mutate(Good(), "g", "but what it adds to is repeated over tp",
         [&](plan::Plan& plan) { At(plan, 1, "forward.1", "loss_sum").AsKernel()->only_first = {}; });
  Mutate(Good(), "g", "but the backward passes add to its gradient 0 times",
         [&](plan::Plan& plan) { Drop(SegmentOf(plan, 0, "backward.0"), "linear_wgrad"); });
  Mutate(Good(), "g", "does not update the weights", [&](plan::Plan& plan) {
    std::swap(At(plan, 0, "update", "adamw").inputs[2], At(plan, 0, "update", "adamw").inputs[3]);
  });
}

TEST_CASE("mutation: gradients, weights and moments in bf16") {
  const plan::Plan narrow =
      plan::TinyPlan(false, {"precision.compute=bf16", "precision.gradient_dtype=bf16",
                             "precision.master_dtype=bf16", "optimizer.moment_dtype=bf16", "parallelism.pp=2",
                             "parallelism.dp=2", "parallelism.zero_stage=1"});
  const absl::Status good = Verify(narrow, {});
  REQUIRE_MESSAGE(good.ok(), Message(good));
  const auto with = [](const plan::Instruction& instruction, const char* name, const char* draws) {
    graph::Attributes attributes;
    for (const auto& [key, item] : instruction.attributes().items()) {
      if (key != name) attributes.Set(key, item);
    }
    if (draws != nullptr) attributes.Set(name, std::string(draws));
    return attributes;
  };
  for (const char* name : {"stream", "weight_stream"}) {
    Mutate(narrow, "g", std::string("rounds to bf16 without the attribute ") + name, [&](plan::Plan& plan) {
      plan::Instruction& adamw = At(plan, 0, "update", "adamw", 1);
      adamw.AsKernel()->attributes = with(adamw, name, nullptr);
    });
    Mutate(narrow, "g", "stage 0 rounds embedding.tokens by", [&](plan::Plan& plan) {
      for (plan::Instruction& instruction : SegmentOf(plan, 1, "update").instructions) {
        if (instruction.kernel() != "adamw" || instruction.attributes().String("stream") != "tied.moments")
          continue;
        instruction.AsKernel()->attributes = with(instruction, name, "another");
      }
    });
  }
  Mutate(narrow, "cs", "its bucket's are bf16", [](plan::Plan& plan) {
    plan.values[static_cast<size_t>(plan.parameters[0].gradient)].dtype = DType::kF32;
  });
  Mutate(narrow, "cgs", "gradients of f32",
         [](plan::Plan& plan) { plan.stages[0].buckets[0].gradient.dtype = DType::kF32; });
}

// What a bucket keeps, and what its update reads and writes, is what the optimizer of the plan says.
TEST_CASE("mutation: the states of the optimizer") {
  const plan::Plan sgd = plan::TinyPlan(
      false, {"optimizer.kind=sgd", "parallelism.dp=2", "parallelism.pp=2", "parallelism.zero_stage=1"});
  const absl::Status good = Verify(sgd, {});
  REQUIRE_MESSAGE(good.ok(), Message(good));
  const auto other = [](plan::Plan& plan) {
    const std::span<const plan::OptimizerDef> all = plan::AllOptimizers();
    plan.optimizer = plan.optimizer == &all[0] ? &all[1] : &all[0];
  };
  Mutate(Good(), "cg", "2 states, but sgd keeps 1", other);
  Mutate(sgd, "cg", "1 states, but adamw keeps 2", other);
  Mutate(sgd, "cg", "is trained by no optimizer", [](plan::Plan& plan) { plan.optimizer = nullptr; });
  Mutate(sgd, "cg", "0 states, but sgd keeps 1",
         [](plan::Plan& plan) { plan.stages[0].buckets[0].states.clear(); });
  Mutate(sgd, "cg", "momentum of f32",
         [](plan::Plan& plan) { plan.stages[0].buckets[0].states[0].elements /= 2; });
  Mutate(sgd, "cg", "states of f16",
         [](plan::Plan& plan) { plan.stages[0].buckets[0].states[0].dtype = DType::kF16; });
  // A moment in another format than its twin, which the kernel has not.
  Mutate(Good(), "cg", "first moments of f32",
         [](plan::Plan& plan) { plan.stages[0].buckets[0].states[1].dtype = DType::kBF16; });
  Mutate(sgd, "g", "takes 3 buffers, not 4", [](plan::Plan& plan) {
    plan::Instruction& update = At(plan, 0, "update", "sgd");
    update.inputs.erase(update.inputs.begin() + 2);
  });
  Mutate(sgd, "g", "does not update the weights and states", [](plan::Plan& plan) {
    At(plan, 0, "update", "sgd").outputs[1] = At(plan, 0, "update", "sgd", 1).outputs[1];
  });
  const auto change = [](plan::Instruction* instruction, const std::string& name, const double* value) {
    graph::Attributes attributes;
    for (const auto& [key, item] : instruction->attributes().items()) {
      if (key != name) attributes.Set(key, item);
    }
    if (value != nullptr) attributes.Set(name, *value);
    instruction->AsKernel()->attributes = attributes;
  };
  for (const char* name : {"momentum", "weight_decay"}) {
    Mutate(sgd, "g", "is not told its",
           [&](plan::Plan& plan) { change(&At(plan, 0, "update", "sgd"), name, nullptr); });
  }
  Mutate(sgd, "g", "for parameters that do not decay", [&](plan::Plan& plan) {
    constexpr double kDecay = 0.1;
    const std::vector<plan::Bucket>& buckets = plan.stages[0].buckets;
    const auto exact =
        std::find_if(buckets.begin(), buckets.end(), [](const auto& b) { return !b.weight_decay; });
    REQUIRE(exact != buckets.end());
    change(&At(plan, 0, "update", "sgd", static_cast<int>(exact - buckets.begin())), "weight_decay", &kDecay);
  });
  Mutate(sgd, "s", "momentum", [](plan::Plan& plan) {  // two buckets' states in one place
    std::vector<plan::Bucket>& buckets = plan.stages[0].buckets;
    const std::int64_t before = buckets[1].states[0].offset;
    for (plan::Instruction& instruction : SegmentOf(plan, 0, "update").instructions) {
      for (auto* refs : {&instruction.inputs, &instruction.outputs}) {
        for (plan::BufferRef& ref : *refs) {
          if (instruction.kernel() == "sgd" && ref.offset == before) ref.offset = buckets[0].states[0].offset;
        }
      }
    }
    buckets[1].states[0].offset = buckets[0].states[0].offset;
  });
}

TEST_CASE("mutation: coverage") {
  const auto bucket = [](plan::Plan& plan) -> plan::Bucket& {
    std::vector<plan::Bucket>& buckets = plan.stages[0].buckets;
    return *std::find_if(buckets.begin(), buckets.end(),
                         [](const plan::Bucket& b) { return b.items.size() > 1; });
  };
  Mutate(Good(), "cs", "its shard", [&](plan::Plan& plan) { bucket(plan).items[0].elements -= 16; });
  Mutate(Good(), "cs", "inside of what ends at", [&](plan::Plan& plan) {
    bucket(plan).items[1].offset_elements = bucket(plan).items[0].elements - 1;
  });
  Mutate(Good(), "cs", "is owned by 0 stages", [&](plan::Plan& plan) { bucket(plan).items.pop_back(); });
  Mutate(Good(), "cg", "is owned by 2 stages", [](plan::Plan& plan) {
    for (plan::Bucket& bucket : plan.stages[1].buckets) bucket.owned = true;
  });
  Mutate(Good(), "c", "of another kind", [](plan::Plan& plan) {
    plan.parameters[static_cast<size_t>(plan.stages[0].buckets[0].items[0].parameter)].role =
        graph::Role::kGain;
  });
  Mutate(Good(), "c", "the chunks end at unit", [](plan::Plan& plan) { plan.units.push_back({"another"}); });
  Mutate(Good(), "c", "comes next", [](plan::Plan& plan) { plan.stages[1].chunks[0].first_unit += 1; });
  Mutate(Good(), "cm", "belongs to stage", [](plan::Plan& plan) { plan.chunk_stage = {1, 1}; });
  Mutate(Good(), "cg", "shards of",
         [](plan::Plan& plan) { plan.stages[0].buckets[0].states[0].elements -= 16; });
  Mutate(Good(), "cgp", "is a partial sum", [](plan::Plan& plan) {
    plan.values[static_cast<size_t>(plan.parameters[0].value)].layout.Set(graph::Axis::kTp,
                                                                          graph::Placement::P());
  });
}

// ------------------------------------------------------------------------------------- fused ops and FP8

namespace {

// Of the CUDA executor, fused and with FP8 products; one rank.
const plan::Plan& Fp8() {
  static const plan::Plan plan = [] {
    const recipe::Recipe recipe =
        plan::TinyRecipe(false, {"precision.compute=fp8", "model.layers=2", "model.dropout.hidden=0"});
    absl::StatusOr<plan::Plan> made =
        driver::CompileUnverified(recipe, {.profile = backend::cuda::CudaProfile()});
    if (!made.ok()) FAIL(Message(made.status()));
    return *std::move(made);
  }();
  return plan;
}

// The places of a quantised weight, in StagePlan::derived.
plan::BufferRef& Derived(plan::Plan& plan, const std::string& name) {
  for (plan::BufferRef& ref : plan.stages[0].derived) {
    if (plan.values[static_cast<size_t>(ref.value)].name == name) return ref;
  }
  FAIL("no " << name);
  return plan.stages[0].derived[0];
}

}  // namespace

TEST_CASE("mutation: the FP8 plan itself is good") { CHECK(Verify(Fp8(), {}).ok()); }

TEST_CASE("mutation: derived values") {
  const auto begin = [](plan::Plan& plan) -> plan::Segment& { return SegmentOf(plan, 0, "begin"); };
  Mutate(Fp8(), "sg", "times, not once", [&](plan::Plan& plan) { Drop(begin(plan), "quantize", 3); });
  Mutate(Fp8(), "sg", ".fp8 2 times, not once",
         [&](plan::Plan& plan) { Double(begin(plan), "quantize", 3); });
  Mutate(Fp8(), "s", "overlaps", [](plan::Plan& plan) {
    Derived(plan, "layers.1.mlp.fc1.weight.fp8").offset = Derived(plan, "layers.0.mlp.fc1.weight.fp8").offset;
  });
  Mutate(Fp8(), "sg", "overlaps", [](plan::Plan& plan) { plan.stages[0].scales.offset -= 256; });
  Mutate(Fp8(), "s", "lies at",
         [](plan::Plan& plan) { At(plan, 0, "begin", "quantize").outputs[1].offset += 256; });
  Mutate(Fp8(), "s", "lies at",
         [](plan::Plan& plan) { At(plan, 0, "forward.0", "linear_fp8").inputs[1].offset += 256; });
  Mutate(Fp8(), "s", "lies at",
         [](plan::Plan& plan) { At(plan, 0, "forward.0", "linear_fp8").inputs[2].offset += 32; });
  // A microbatch writes a weight again.
  Mutate(Fp8(), "sg", "which is no activation", [](plan::Plan& plan) {
    plan::Instruction& quantize = At(plan, 0, "forward.0", "quantize");
    quantize.inputs[0] = At(plan, 0, "begin", "quantize").inputs[0];
    quantize.outputs = At(plan, 0, "begin", "quantize").outputs;
  });
  // Two weights in one buffer, everywhere.
  Mutate(Fp8(), "s", "overlaps", [](plan::Plan& plan) {
    const plan::BufferRef one = Derived(plan, "layers.0.mlp.fc1.weight.fp8");
    plan::BufferRef& other = Derived(plan, "layers.1.mlp.fc1.weight.fp8");
    for (plan::Segment& segment : plan.stages[0].segments) {
      for (plan::Instruction& instruction : segment.instructions) {
        for (auto* refs : {&instruction.inputs, &instruction.outputs}) {
          for (plan::BufferRef& ref : *refs) {
            if (ref.value == other.value) ref.offset = one.offset;
          }
        }
      }
    }
    other.offset = one.offset;
  });
}

TEST_CASE("mutation: states of quantised tensors") {
  const auto update = [](plan::Plan& plan) -> plan::Segment& { return SegmentOf(plan, 0, "update"); };
  Mutate(Fp8(), "g", "the states are never updated",
         [&](plan::Plan& plan) { Drop(update(plan), "fp8_update"); });
  Mutate(Fp8(), "g", "the states are updated twice",
         [&](plan::Plan& plan) { Double(update(plan), "fp8_update"); });
  Mutate(Fp8(), "g", "is not of all states, in place", [](plan::Plan& plan) {
    plan::Instruction& states = At(plan, 0, "update", "fp8_update");
    states.inputs[0].elements -= 8;
    states.outputs[0].elements -= 8;
  });
  Mutate(Fp8(), "g", "is not of all states, in place",
         [](plan::Plan& plan) { At(plan, 0, "update", "fp8_update").outputs[0].offset += 32; });
  Mutate(Fp8(), "g", "the update knows no kernel",
         [](plan::Plan& plan) { At(plan, 0, "update", "fp8_update").AsKernel()->name = "copy"; });
}

namespace {

// dp 2 · tp 2 with sequence parallelism and ZeRO-1, gathered behind the update.
const plan::Plan& Fp8Ranks() {
  static const plan::Plan plan = [] {
    const recipe::Recipe recipe = plan::TinyRecipe(
        false, {"precision.compute=fp8", "model.layers=2", "model.dropout.hidden=0", "parallelism.dp=2",
                "parallelism.tp=2", "parallelism.sequence_parallel=true", "parallelism.zero_stage=1",
                "parallelism.overlap=on", "training.micro_batch=4"});
    absl::StatusOr<plan::Plan> made =
        driver::CompileUnverified(recipe, {.profile = backend::cuda::CudaProfile()});
    if (!made.ok()) FAIL(Message(made.status()));
    return *std::move(made);
  }();
  return plan;
}

size_t FindNamed(const plan::Segment& segment, const std::string& name) {
  for (size_t i = 0; i < segment.instructions.size(); ++i) {
    if (segment.instructions[i].name == name) return i;
  }
  FAIL("no " << name);
  return 0;
}

}  // namespace

TEST_CASE("mutation: the FP8 plan of several ranks is good") { CHECK(Verify(Fp8Ranks(), {}).ok()); }

TEST_CASE("mutation: largest values of quantised tensors over the ranks of a stage") {
  const auto change = [](const std::function<void(std::vector<plan::Instruction>&, size_t)>& how) {
    return [how](plan::Plan& plan) {
      plan::Segment& update = SegmentOf(plan, 0, "update");
      how(update.instructions, FindNamed(update, "states.all_reduce"));
    };
  };
  const auto at = [](std::vector<plan::Instruction>& list, size_t i) {
    return list.begin() + static_cast<std::ptrdiff_t>(i);
  };
  Mutate(Fp8Ranks(), "g", "by the rank's own largest values, not by those over dp+tp",
         change([&](auto& list, size_t i) { list.erase(at(list, i)); }));
  Mutate(Fp8Ranks(), "g", "are taken twice",
         change([&](auto& list, size_t i) { list.insert(at(list, i), plan::Instruction(list[i])); }));
  Mutate(Fp8Ranks(), "g", "the largest over dp+tp are taken, not all_reduce over dp+tp",
         change([](auto& list, size_t i) { list[i].AsExchange()->reduction = graph::Reduction::kSum; }));
  Mutate(Fp8Ranks(), "g", "the largest over dp+tp are taken, not all_reduce (max) over dp",
         change([](auto& list, size_t i) {
           list[i].AsBucketExchange()->group = plan::AxisSet::Of(graph::Axis::kDp);
           list[i].AsExchange()->wire_bytes = list[i].inputs[0].bytes();  // 2 · bytes · (2 − 1) / 2
         }));
  Mutate(Fp8Ranks(), "g", "takes no sum", change([](auto& list, size_t i) {
           for (plan::BufferRef* ref : {&list[i].inputs[0], &list[i].outputs[0]}) ref->elements -= 8;
           list[i].AsExchange()->wire_bytes = 2 * list[i].inputs[0].bytes() * 3 / 4;
         }));
  // Beside what is gathered; after the update of the states.
  Mutate(Fp8Ranks(), "g", "runs beside what is gathered behind the update",
         change([&](auto& list, size_t i) { std::rotate(at(list, i), at(list, i + 1), list.end() - 1); }));
  Mutate(Fp8Ranks(), "g", "by the rank's own largest values",
         change([&](auto& list, size_t i) { std::rotate(at(list, i), list.end() - 1, list.end()); }));
  // All else is summed.
  for (const char* name : {"scalars.all_reduce", "bucket.0.reduce_scatter"}) {
    Mutate(Fp8Ranks(), "g", "takes no sum", [&](plan::Plan& plan) {
      for (plan::Segment& segment : plan.stages[0].segments) {
        for (plan::Instruction& instruction : segment.instructions) {
          if (instruction.name == name) instruction.AsExchange()->reduction = graph::Reduction::kMax;
        }
      }
    });
  }
}

TEST_CASE("mutation: placements of FP8 ops") {
  // What tp splits is taken for a tensor that every rank holds whole.
  const auto whole = [](const char* segment, const char* kernel, size_t output) {
    return [segment, kernel, output](plan::Plan& plan) {
      const plan::BufferRef& ref = At(plan, 0, segment, kernel).outputs[output];
      plan::LocalValue& value = plan.values[static_cast<size_t>(ref.value)];
      REQUIRE(!value.layout.At(graph::Axis::kTp).replicated());
      REQUIRE(value.layout.Set(graph::Axis::kTp, graph::Placement::R()));
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
  Mutate(Fp8Ranks(), "p", "is no lawful placement of linear_wgrad_fp8", [](plan::Plan& plan) {
    plan::Instruction& product = At(plan, 0, "backward.0", "linear_wgrad_fp8");
    std::swap(product.inputs[0], product.inputs[1]);
    std::swap(product.inputs[2], product.inputs[3]);
  });
}

TEST_CASE("mutation: first sums") {
  Mutate(Fp8(), "g", "adds to the gradient of the iteration before",
         [](plan::Plan& plan) { At(plan, 0, "backward.0", "linear_wgrad_fp8", 2).AsKernel()->fresh = 0; });
  // The bias that a quantisation sums.
  Mutate(Fp8(), "g", "adds to the gradient of the iteration before",
         [](plan::Plan& plan) { At(plan, 0, "backward.0", "gelu_grad_quantize").AsKernel()->fresh = 0; });
  // The tied table: the head's gradient overwrites, the lookup's adds.
  Mutate(Fp8(), "g", "overwrites a sum, which is not the gradient of the iteration before",
         [](plan::Plan& plan) {
           for (plan::Instruction& instruction : SegmentOf(plan, 0, "backward.0").instructions) {
             if (instruction.kernel() == "embedding_grad") instruction.AsKernel()->fresh = 1;
           }
         });
  Mutate(Fp8(), "g", "adds to the gradient of the iteration before",
         [](plan::Plan& plan) { At(plan, 0, "backward.0", "linear_cross_entropy").AsKernel()->fresh = 0; });
  Mutate(Fp8(), "sg", "overwrites the sum loss in the first microbatch", [](plan::Plan& plan) {
    At(plan, 0, "backward.0", "linear_cross_entropy").AsKernel()->fresh |= 0b100;
  });
  Mutate(Fp8(), "s", "overwrites the sum",
         [](plan::Plan& plan) { At(plan, 0, "backward.0", "linear_wgrad_fp8").AsKernel()->accumulate = 0; });
  Mutate(Fp8(), "g", "adds to the loss 0 times, not 1", [](plan::Plan& plan) {
    // The head's sum of the loss goes where nothing reads it.
    plan::Instruction& head = At(plan, 0, "backward.0", "linear_cross_entropy");
    head.outputs.pop_back();
  });
  // Microbatch 1 adds its gradients before microbatch 0 has overwritten those of the iteration before.
  Mutate(Good(), "t", "before microbatch 0 has overwritten those of the iteration before",
         [](plan::Plan& plan) {
           std::vector<plan::Step*> backward;
           for (plan::Step& step : plan.stages[0].programs[0]) {
             if (step.kind == plan::StepKind::kRun && step.chunk == 0 &&
                 step.segment == plan.stages[0].chunks[0].train().backward)
               backward.push_back(&step);
           }
           std::swap(backward[0]->microbatch, backward[1]->microbatch);
           std::swap(backward[0]->slot, backward[1]->slot);
         });
}

// tp 2, so that placements matter; the profile fuses.
TEST_CASE("mutation: placements of fused ops") {
  absl::StatusOr<plan::Plan> made = driver::CompileUnverified(
      plan::TinyRecipe(
          false, {"precision.compute=bf16", "parallelism.tp=2", "model.layers=2", "model.dropout.hidden=0"}),
      {.profile = backend::cuda::CudaProfile()});
  REQUIRE(made.ok());
  const plan::Plan& fused = *made;
  REQUIRE(Verify(fused, {}).ok());
  const auto layout = [](plan::Plan& plan, const plan::BufferRef& ref) -> plan::Layout& {
    return plan.values[static_cast<size_t>(ref.value)].layout;
  };
  Mutate(fused, "p", "is no lawful placement of add_layer_norm", [&](plan::Plan& plan) {
    layout(plan, At(plan, 0, "evaluate.0", "add_layer_norm").outputs[0])
        .Set(graph::Axis::kTp, graph::Placement::P());
  });
  Mutate(fused, "p", "is no lawful placement of linear_gelu", [&](plan::Plan& plan) {
    const plan::Instruction& gelu = At(plan, 0, "evaluate.0", "linear_gelu");
    plan::LocalValue& pre = plan.values[static_cast<size_t>(gelu.outputs[1].value)];
    pre.layout.Set(graph::Axis::kTp, graph::Placement::P());
    pre.shape = pre.local;
  });
  Mutate(fused, "p", "is no lawful placement of attention_packed", [&](plan::Plan& plan) {
    // The statistics stand for all heads, but each rank has its own.
    plan::LocalValue& lse =
        plan.values[static_cast<size_t>(At(plan, 0, "evaluate.0", "attention_packed").outputs[1].value)];
    lse.layout.Set(graph::Axis::kTp, graph::Placement::R());
    lse.shape = lse.local;
  });
  // One output fewer than the composition makes.
  Mutate(fused, "p", "is no lawful placement of linear_gelu",
         [&](plan::Plan& plan) { At(plan, 0, "evaluate.0", "linear_gelu").outputs.pop_back(); });
}

TEST_CASE("mutation: staged inputs") {
  Mutate(Good(), "s", "overlaps", [](plan::Plan& plan) {
    plan.stages[0].chunks[0].staged.offset = plan.stages[0].chunks[0].incoming.offset;
  });
  Mutate(Good(), "s", "overlaps incoming inputs of chunk 0",
         [](plan::Plan& plan) { plan.stages[0].chunks[0].staged.offset -= 256; });
  Mutate(Good(), "s", "outside of the arena",
         [](plan::Plan& plan) { plan.stages[0].chunks[0].staged.offset = plan.stages[0].arena_bytes - 16; });
  Mutate(Good(), "s", "a staging buffer of",
         [](plan::Plan& plan) { plan.stages[1].chunks[0].incoming.elements += 4096; });
}

TEST_CASE("verify: an arena that does not fit is itemised, with a remedy") {
  const plan::Plan plan = plan::TinyPlan(false, {"parallelism.dp=2"});
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

}  // namespace engine::verify
