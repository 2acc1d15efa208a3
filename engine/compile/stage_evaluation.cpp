#include "engine/compile/stage_evaluation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/compile/flat_exchange.h"
#include "engine/compile/place.h"
#include "engine/compile/program.h"
#include "engine/compile/select.h"
#include "engine/compile/slots.h"
#include "engine/compile/transfer_buffers.h"
#include "engine/compile/update.h"
#include "engine/plan/schedule.h"

namespace engine::compile {
namespace {

constexpr plan::ProgramKind kEvaluate = plan::ProgramKind::kEvaluate;

// Places what is fed to the chunk.
void PlaceInputsOf(const plan::Plan& plan, const CutGraph& graph, plan::Chunk* chunk,
                   UnfinishedStage* stage) {
  std::int64_t not_itemised = 0;  // MemoryBreakdown::evaluation is one number for all
  for (std::int32_t v : SavedValues(graph, chunk->index)) {
    if (graph.local.values[static_cast<size_t>(v)].kind != graph::ValueKind::kInput) continue;
    chunk->passes[kEvaluate].inputs.push_back(
        stage->ReserveValue(Unplaced(plan, graph.base + v), &not_itemised));
  }
}

// Places what the chunk makes of each microbatch that is kept, and what gathers that of all microbatches.
void PlaceOutputsOf(const plan::Plan& plan, const CutGraph& graph, plan::Chunk* chunk,
                    UnfinishedStage* stage) {
  std::int64_t not_itemised = 0;
  std::int64_t elements = 0;  // of a microbatch
  for (const std::int32_t value : {plan.scores.log_probability, plan.scores.rank}) {
    if (value < 0 || graph.producer_chunk[static_cast<size_t>(value - graph.base)] != chunk->index) continue;
    chunk->passes[kEvaluate].outputs.push_back(stage->ReserveValue(Unplaced(plan, value), &not_itemised));
    elements += chunk->passes[kEvaluate].outputs.back().elements;
  }
  if (elements == 0) return;
  chunk->kept = stage->ReserveFlat(elements * plan.microbatches, DType::kF32, &not_itemised);
}

// The one pass of a microbatch through a chunk. `keep`: as PlaceInputs::keep.
DraftSegment SelectPass(const StageInputs& inputs, const plan::Plan& plan, const plan::StagePlan& stage,
                        std::int32_t chunk, const Storage& storage, std::int32_t keep) {
  const CutGraph& graph = *inputs.evaluate;
  FlatExchange exchange = inputs.policy->exchange;
  const SelectInputs select{.plan = &plan,
                            .graph = &graph.local,
                            .base = graph.base,
                            .nodes = &graph.forward[static_cast<size_t>(chunk)],
                            .storage = &storage,
                            .profile = inputs.profile,
                            .keep = keep,
                            .pushed = exchange.pushed,
                            .direct = exchange.direct};
  DraftSegment pass = Select(select, fmt::format("evaluate.{}", chunk), chunk);
  exchange.behind = exchange.behind && exchange.beside_conversions;
  GatherParameters(plan, stage, exchange, &pass);
  JoinGathers(plan, stage, {&pass});
  return pass;
}

bool MakesLogits(const plan::Plan& plan, const CutGraph& graph, const plan::Chunk& chunk) {
  return graph.producer_chunk[static_cast<size_t>(plan.logits - graph.base)] == chunk.index;
}

// Adds the passes of all chunks.
void AddPasses(const StageInputs& inputs, const plan::Plan& plan, const Persistent& persistent,
               const TransferBuffers& buffers, UnfinishedStage* stage, plan::BufferRef* logits) {
  const std::int64_t transient_base = stage->cursor;
  std::int64_t transients = 0;
  for (plan::Chunk& chunk : stage->plan.chunks) {
    HalfStorage storage{.first = persistent.values, .second = {}};
    AddTransfers(plan, buffers, chunk.index, 1, &storage);
    for (const auto* refs : {&chunk.passes[kEvaluate].inputs, &chunk.passes[kEvaluate].outputs}) {
      for (const plan::BufferRef& ref : *refs) storage.first.emplace(ref.value, ref);
    }
    const bool keeps = inputs.keep_logits && MakesLogits(plan, *inputs.evaluate, chunk);
    const std::int32_t keep = keeps ? plan.logits : -1;
    DraftSegment pass = SelectPass(inputs, plan, stage->plan, chunk.index, storage.first, keep);
    const PlaceInputs place{
        .plan = &plan, .storage = &storage, .keep = keep, .transient_base = transient_base};
    std::int64_t bytes = 0;
    chunk.passes[kEvaluate].forward = stage->AddSegment(Place(place, std::move(pass), &bytes, logits));
    transients = std::max(transients, bytes);
  }
  stage->Reserve(transients);
}

}  // namespace

void BuildEvaluation(const StageInputs& inputs, const plan::Plan& plan, const Persistent& persistent,
                     UnfinishedStage* stage, plan::BufferRef* logits) {
  plan::StagePlan& of = stage->plan;
  for (plan::Chunk& chunk : of.chunks) {
    PlaceInputsOf(plan, *inputs.evaluate, &chunk, stage);
    PlaceOutputsOf(plan, *inputs.evaluate, &chunk, stage);
  }
  std::int64_t not_itemised = 0;
  const TransferBuffers buffers = PlaceTransfers(plan, *inputs.evaluate, 1, {}, stage, &not_itemised);
  AddPasses(inputs, plan, persistent, buffers, stage, logits);
  plan::StagePlan::Ends& ends = of.ends[kEvaluate];
  ends.first = stage->AddSegment(BeginSegment("evaluate_begin", plan, of, inputs.policy->exchange));
  plan::Segment end;
  end.name = "evaluate_end";
  if (plan.mesh.world() > 1) end.instructions.push_back(ReduceScalars(plan, of));
  ends.last = stage->AddSegment(std::move(end));
  const ProgramInputs program{.plan = &plan, .stage = &of, .buffers = &buffers, .kind = kEvaluate};
  const std::int64_t per_stage = static_cast<std::int64_t>(of.chunks.size());
  of.programs.push_back(
      UnrollProgram(program, plan::ForwardOnly(plan.mesh.pp, per_stage, stage->index, plan.microbatches)));
}

}  // namespace engine::compile
