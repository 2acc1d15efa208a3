// Plans that generate: what is broken in their forms, caches and steps is reported.
#include <doctest/doctest.h>

#include "tests/verify/mutations.h"

namespace engine::verify {
namespace {

// tp 2 · pp 2, three slots of 32 tokens: prompts of 16 and 32 tokens, one and three sequences.
const plan::Plan& Generating() {
  static const plan::Plan plan = [] {
    const recipe::Recipe recipe = plan::TinyRecipe(
        true, {"parallelism.tp=2", "parallelism.pp=2", "training.global_batch=1", "training.micro_batch=1"});
    absl::StatusOr<plan::Plan> compiled = driver::CompileGeneration(
        recipe, {}, {.slots = 3, .context = 32, .prefill_tokens = {16, 32}, .decode_batches = {1, 3}});
    if (!compiled.ok()) FAIL(Message(compiled.status()));
    return *std::move(compiled);
  }();
  return plan;
}

void RefusedAs(const std::string& text, const std::function<void(plan::Plan&)>& mutate) {
  plan::Plan plan = Generating();
  mutate(plan);
  const absl::Status status = Verify(plan, {});
  CAPTURE(text);
  CAPTURE(Message(status));
  CHECK(Message(status).find(text) != std::string::npos);
}

plan::Segment& DecodeOf(plan::Plan& plan, size_t stage) {
  const plan::FormId last = plan.FormsEnd() - 1;
  plan::StagePlan& of = plan.stages[stage];
  return of.segments[static_cast<size_t>(of.chunks[0].passes[last].forward)];
}

plan::Instruction& CachedAttentionOf(plan::Plan& plan) {
  for (plan::Instruction& instruction : DecodeOf(plan, 0).instructions) {
    if (instruction.kernel() == "cached_attention") return instruction;
  }
  FAIL("no cached_attention");
  return DecodeOf(plan, 0).instructions[0];
}

TEST_CASE("mutation: the plan that generates is good, and each form has its program") {
  const plan::Plan& plan = Generating();
  CHECK(Verify(plan, {}).ok());
  REQUIRE(plan.programs.size() == 4);
  CHECK(plan.ProgramName(0) == "prefill of 1 × 16 tokens");
  CHECK(plan.ProgramName(3) == "decode of 3 × 1 tokens");
  CHECK(plan.ProgramOf(plan::kTrainForm) < 0);
  CHECK(plan.ProgramOf(plan::kEvaluateForm) < 0);
}

TEST_CASE("mutation: forms and programs of generation") {
  RefusedAs("decode of 3 × 1 tokens: 2 microbatches of 3 samples are no 3 samples",
            [](plan::Plan& plan) { plan.programs[3].microbatches = 2; });
  RefusedAs("decode of 3 × 1 tokens of 3 sequences has a program of 6", [](plan::Plan& plan) {
    plan.programs[3].microbatches = 2;
    plan.programs[3].global_batch = 6;
  });
  RefusedAs("form 4 of the plan is to evaluate",
            [](plan::Plan& plan) { plan.forms[4].kind = plan::ProgramKind::kEvaluate; });
  RefusedAs("a program of form 9, and the plan has 6", [](plan::Plan& plan) { plan.programs[2].form = 9; });
  RefusedAs("has no first and last segment to decode of 3 × 1 tokens",
            [](plan::Plan& plan) { plan.stages[1].ends[5] = {}; });
}

TEST_CASE("mutation: a parameter that lies another way in one program") {
  RefusedAs("has the layouts tp:S(", [](plan::Plan& plan) {
    plan::LocalValue* last = nullptr;
    for (plan::LocalValue& value : plan.values) {
      const bool is_split = value.layout.At(graph::Axis::kTp).split();
      if (value.kind == graph::ValueKind::kParameter && value.shape.rank() == 2 && is_split) last = &value;
    }
    REQUIRE(last != nullptr);
    plan::Layout layout(last->layout.dims());
    layout.Set(graph::Axis::kTp, graph::Placement::S(1 - last->layout.At(graph::Axis::kTp).dim));
    last->layout = layout;
    last->local = layout.LocalShape(last->shape, plan.mesh);
  });
}

TEST_CASE("mutation: caches") {
  RefusedAs("overlaps", [](plan::Plan& plan) {
    std::vector<plan::State>& states = plan.stages[0].states;
    states[1].buffer.offset = states[0].buffer.offset;
  });
  RefusedAs("is split, and no state of zeros of a session",
            [](plan::Plan& plan) { plan.stages[0].states[0].spec.life = graph::Lifetime::kRun; });
  RefusedAs("2 instructions write cache/", [](plan::Plan& plan) {
    std::vector<plan::Instruction>& all = DecodeOf(plan, 0).instructions;
    const size_t at = static_cast<size_t>(&CachedAttentionOf(plan) - all.data());
    all.insert(all.begin() + static_cast<std::ptrdiff_t>(at), plan::Instruction(all[at]));
  });
  RefusedAs("prefill of 1 × 16 tokens: 0 instructions write cache/", [](plan::Plan& plan) {
    plan::StagePlan& stage = plan.stages[0];
    const std::int32_t forward = stage.chunks[0].passes[plan::kFirstGenerationForm].forward;
    std::vector<plan::Instruction>& all = stage.segments[static_cast<size_t>(forward)].instructions;
    const auto update = std::find_if(all.begin(), all.end(), [](const plan::Instruction& instruction) {
      return instruction.kernel() == "cache_update";
    });
    REQUIRE(update != all.end());
    all.erase(update);
  });
  RefusedAs("stage 0 decode3x1.0", [](plan::Plan& plan) {  // the cache of another layer
    plan::Instruction& attention = CachedAttentionOf(plan);
    attention.outputs[1].offset = plan.stages[0].states[2].buffer.offset;
  });
}

TEST_CASE("mutation: caches of ranks that split the slots") {
  const recipe::Recipe recipe =
      plan::TinyRecipe(true, {"parallelism.dp=2", "training.global_batch=2", "training.micro_batch=1"});
  const absl::StatusOr<plan::Plan> compiled = driver::CompileGeneration(
      recipe, {}, {.slots = 6, .context = 32, .prefill_tokens = {32}, .decode_batches = {3}});
  REQUIRE_MESSAGE(compiled.ok(), Message(compiled.status()));
  CHECK(compiled->ProgramName(0) == "prefill of 2 × 32 tokens");
  const auto refused = [&](const std::function<void(plan::LocalValue&)>& mutate) {
    plan::Plan plan = *compiled;
    mutate(plan.values[static_cast<size_t>(plan.stages[0].states[0].buffer.value)]);
    return Message(Verify(plan, {}));
  };
  CHECK(refused([](plan::LocalValue&) {}).empty());
  CHECK(refused([](plan::LocalValue& cache) { cache.local = cache.shape; }) ==
        "stage 0: cache/layers.0.attention.core.keys has a buffer of 1536 numbers, not 3072");
  CHECK(refused([](plan::LocalValue& cache) { cache.layout.Set(plan::Axis::kDp, graph::Placement::R()); }) ==
        "layers.0.attention.core.keys [6, 32, 4, 4] with layout R is [3, 32, 4, 4] on a rank");
}

TEST_CASE("mutation: logits, and the largest of them") {
  const auto erase_from_maker = [](plan::Plan& plan, std::int32_t value) {
    std::vector<plan::Instruction>& all = DecodeOf(plan, 1).instructions;
    all.erase(
        std::ranges::find(all, value,
                          [](const plan::Instruction& instruction) { return instruction.outputs[0].value; }),
        all.end());
  };
  const auto decode = Generating().FormsEnd() - 1;
  RefusedAs("reader of the logits",
            [&](plan::Plan& plan) { erase_from_maker(plan, plan.logits[decode].value); });
  RefusedAs("what is kept after",
            [&](plan::Plan& plan) { erase_from_maker(plan, plan.top_logits[decode].tokens); });
  RefusedAs("does not keep the largest logits",
            [&](plan::Plan& plan) { plan.stages[1].chunks[0].passes[decode].outputs.pop_back(); });
}

}  // namespace
}  // namespace engine::verify
