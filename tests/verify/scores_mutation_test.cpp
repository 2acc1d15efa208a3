// What an evaluation keeps of each microbatch: the verifier reports a plan that loses it.
#include "tests/verify/mutations.h"

namespace engine::verify {
namespace {

// dp 2 · tp 2 · pp 2 that keeps scores.
const plan::Plan& Keeping() {
  static const plan::Plan plan = [] {
    absl::StatusOr<plan::Plan> compiled = driver::CompileUnverified(
        plan::TinyRecipe(false, {"parallelism.dp=2", "parallelism.tp=2", "parallelism.pp=2"}),
        {.profile = {}, .keep_scores = true});
    if (!compiled.ok()) FAIL(Message(compiled.status()));
    return *std::move(compiled);
  }();
  return plan;
}

plan::Chunk& LastChunk(plan::Plan& plan) { return plan.stages[1].chunks.back(); }

}  // namespace

TEST_CASE("mutation: scores that are kept") {
  REQUIRE(Verify(Keeping(), {}).ok());
  // 16 samples of 32 tokens, of which a rank has half; log-probability and rank of each.
  const plan::Chunk& keeps = Keeping().stages[1].chunks.back();
  CHECK(keeps.evaluate().outputs.size() == 2);
  CHECK(keeps.kept.elements == 2 * 16 * 32 / 2);
  CHECK(Keeping().stages[0].chunks.back().kept.elements == 0);
  Mutate(Keeping(), "s", "are kept in a buffer of",
         [](plan::Plan& plan) { --LastChunk(plan).kept.elements; });
  Mutate(Keeping(), "s", "which overlaps loss.scores", [](plan::Plan& plan) {
    std::swap(LastChunk(plan).passes[plan::kEvaluateForm].outputs[0].offset,
              LastChunk(plan).passes[plan::kEvaluateForm].outputs[1].offset);
  });
  Mutate(Keeping(), "s", "overlaps", [](plan::Plan& plan) { LastChunk(plan).kept.offset -= 256; });
  Mutate(Keeping(), "s", "what is kept after evaluate.1", [](plan::Plan& plan) {
    std::vector<plan::Instruction>& instructions = SegmentOf(plan, 1, "evaluate.1").instructions;
    const std::int32_t rank = plan.scores.rank;
    std::erase_if(instructions, [&](const plan::Instruction& i) { return i.outputs[0].value == rank; });
  });
}

}  // namespace engine::verify
