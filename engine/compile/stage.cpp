#include "engine/compile/stage.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/compile/persistent.h"
#include "engine/compile/stage_forward.h"
#include "engine/compile/stage_training.h"
#include "engine/compile/unfinished_stage.h"

namespace engine::compile {
namespace {

std::vector<plan::Chunk> ChunksOf(const plan::Plan& plan, std::int32_t stage, const ChunkUnits& chunk_units) {
  std::vector<plan::Chunk> chunks;
  for (size_t c = 0; c < chunk_units.size(); ++c) {
    if (plan.chunk_stage[c] != stage) continue;
    plan::Chunk chunk;
    chunk.index = static_cast<std::int32_t>(c);
    chunk.first_unit = chunk_units[c].first;
    chunk.end_unit = chunk_units[c].second;
    chunks.push_back(chunk);
  }
  return chunks;
}

double TrainingFlops(const plan::StagePlan& stage, std::int64_t microbatches) {
  const auto of_pass = [&](std::int32_t segment) {
    return segment < 0 ? 0.0 : stage.segments[static_cast<size_t>(segment)].product_flops;
  };
  double flops = 0;
  for (const plan::Chunk& chunk : stage.chunks) {
    const plan::ChunkPasses& passes = chunk.train();
    flops += static_cast<double>(microbatches) *
             (of_pass(passes.forward) + of_pass(passes.backward) + of_pass(passes.weights));
  }
  return flops;
}

}  // namespace

bool BuildStage(const StageInputs& inputs, std::int32_t stage, const ChunkUnits& chunk_units,
                plan::Plan* plan) {
  UnfinishedStage building;
  building.index = stage;
  building.plan.chunks = ChunksOf(*plan, stage, chunk_units);
  const Persistent persistent = PlacePersistent(inputs, *plan, &building);
  // Programs of different forms, which do not run at once, use the same bytes behind what is persistent.
  const std::int64_t dynamic_base = building.cursor;
  bool in_turns = true;
  if (inputs.train != nullptr) in_turns = BuildTraining(inputs, *plan, persistent, &building);
  const std::int64_t train_end = building.cursor;
  std::int64_t forward_end = dynamic_base;
  for (plan::FormId form = plan::kEvaluateForm; form < plan->FormsEnd(); ++form) {
    if (inputs.GraphOf(form) == nullptr) continue;
    building.cursor = dynamic_base;
    BuildForward(inputs, *plan, form, persistent, &building, &plan->logits[form].buffer);
    forward_end = std::max(forward_end, building.cursor);
  }
  plan::StagePlan& built = building.plan;
  built.memory.evaluation = std::max<std::int64_t>(0, forward_end - train_end);
  built.arena_bytes = std::max(train_end, forward_end);
  ENGINE_CHECK(built.arena_bytes == built.memory.total(), "arena of {} bytes, itemised {}", built.arena_bytes,
               built.memory.total());
  if (inputs.train != nullptr) built.flops = TrainingFlops(built, plan->microbatches);
  plan->stages.push_back(std::move(built));
  return in_turns;
}

}  // namespace engine::compile
