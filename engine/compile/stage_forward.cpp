#include "engine/compile/stage_forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
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

// Builds a stage's program of one form.
class ForwardBuilder {
 public:
  ForwardBuilder(const StageInputs& inputs, const plan::Plan& plan, plan::FormId form,
                 const Persistent& persistent, UnfinishedStage* stage)
      : in_(inputs),
        plan_(plan),
        form_(form),
        graph_(*inputs.GraphOf(form)),
        name_(NameOf(plan, form)),
        persistent_(persistent),
        stage_(*stage) {}

  void Build(plan::BufferRef* logits) {
    for (plan::Chunk& chunk : stage_.plan.chunks) {
      PlaceInputsOf(&chunk);
      PlaceOutputsOf(&chunk);
    }
    std::int64_t not_itemised = 0;  // MemoryBreakdown::evaluation is one number for all
    const TransferBuffers buffers = PlaceTransfers(plan_, graph_, 1, {}, &stage_, &not_itemised);
    AddPasses(buffers, logits);
    AddEnds();
    const ProgramInputs program{.plan = &plan_, .stage = &stage_.plan, .buffers = &buffers, .form = form_};
    const std::int64_t per_stage = static_cast<std::int64_t>(stage_.plan.chunks.size());
    const std::int64_t microbatches = plan_.ProgramAt(plan_.ProgramOf(form_)).microbatches;
    stage_.plan.programs.push_back(
        UnrollProgram(program, plan::ForwardOnly(plan_.mesh.pp, per_stage, stage_.index, microbatches)));
  }

 private:
  // Of segments: "evaluate", "prefill512x1".
  static std::string NameOf(const plan::Plan& plan, plan::FormId form) {
    const plan::Form& of = plan.FormAt(form);
    const plan::KindFacts facts = plan.FactsAt(form);
    if (!facts.generates) return std::string(facts.name);
    return fmt::format("{}{}x{}", facts.name, of.samples, of.tokens);
  }

  // Places what is fed to the chunk.
  void PlaceInputsOf(plan::Chunk* chunk) {
    std::int64_t not_itemised = 0;
    for (std::int32_t v : SavedValues(graph_, chunk->index)) {
      if (graph_.local.values[static_cast<size_t>(v)].kind != graph::ValueKind::kInput) continue;
      chunk->passes[form_].inputs.push_back(
          stage_.ReserveValue(Unplaced(plan_, graph_.base + v), &not_itemised));
    }
  }

  // The values that somebody reads beside the logits: in a form that generates after each run, in an evaluation after all its
  // microbatches.
  std::vector<std::int32_t> Outputs() const {
    if (form_ == plan::kEvaluateForm) return {plan_.scores.log_probability, plan_.scores.rank};
    const plan::Plan::TopLogits& top = plan_.top_logits[form_];
    return {top.tokens, top.values, top.log_sums, top.row_log_sums};
  }

  // Places what the chunk makes of each microbatch that is kept, and what gathers that of all microbatches.
  void PlaceOutputsOf(plan::Chunk* chunk) {
    std::int64_t not_itemised = 0;
    std::int64_t elements = 0;  // of a microbatch
    for (const std::int32_t value : Outputs()) {
      if (value < 0 || graph_.producer_chunk[static_cast<size_t>(value - graph_.base)] != chunk->index)
        continue;
      chunk->passes[form_].outputs.push_back(stage_.ReserveValue(Unplaced(plan_, value), &not_itemised));
      elements += chunk->passes[form_].outputs.back().elements;
    }
    if (elements == 0 || form_ != plan::kEvaluateForm) return;
    chunk->kept = stage_.ReserveFlat(elements * plan_.microbatches, DType::kF32, &not_itemised);
  }

  // The one pass of a microbatch through a chunk. `keep`: as PlaceInputs::keep.
  DraftSegment SelectPass(std::int32_t chunk, const Storage& storage, std::int32_t keep) const {
    FlatExchange exchange = in_.policy->exchange;
    const SelectInputs select{.plan = &plan_,
                              .graph = &graph_.local,
                              .base = graph_.base,
                              .nodes = &graph_.forward[static_cast<size_t>(chunk)],
                              .storage = &storage,
                              .profile = in_.profile,
                              .keep = keep,
                              .pushed = exchange.pushed,
                              .addition = exchange.addition};
    DraftSegment pass = Select(select, fmt::format("{}.{}", name_, chunk), chunk);
    exchange.behind = exchange.behind && exchange.beside_conversions;
    GatherParameters(plan_, stage_.plan, exchange, &pass);
    JoinGathers(plan_, stage_.plan, {&pass});
    return pass;
  }

  bool KeepsLogits(const plan::Chunk& chunk) const {
    const bool keeps = in_.keep_logits || plan_.FactsAt(form_).generates;
    const std::int32_t value = plan_.logits[form_].value;
    return keeps && graph_.producer_chunk[static_cast<size_t>(value - graph_.base)] == chunk.index;
  }

  // Adds the passes of all chunks.
  void AddPasses(const TransferBuffers& buffers, plan::BufferRef* logits) {
    const std::int64_t transient_base = stage_.cursor;
    std::int64_t transients = 0;
    for (plan::Chunk& chunk : stage_.plan.chunks) {
      HalfStorage storage{.first = persistent_.values, .second = {}};
      AddTransfers(plan_, buffers, chunk.index, 1, &storage);
      for (const auto* refs : {&chunk.passes[form_].inputs, &chunk.passes[form_].outputs}) {
        for (const plan::BufferRef& ref : *refs) storage.first.emplace(ref.value, ref);
      }
      const std::int32_t keep = KeepsLogits(chunk) ? plan_.logits[form_].value : -1;
      DraftSegment pass = SelectPass(chunk.index, storage.first, keep);
      const PlaceInputs place{
          .plan = &plan_, .storage = &storage, .keep = keep, .transient_base = transient_base};
      std::int64_t bytes = 0;
      chunk.passes[form_].forward = stage_.AddSegment(Place(place, std::move(pass), &bytes, logits));
      transients = std::max(transients, bytes);
    }
    stage_.Reserve(transients);
  }

  void AddEnds() {
    const std::int32_t first =
        stage_.AddSegment(BeginSegment(name_ + "_begin", plan_, stage_.plan, in_.policy->exchange));
    plan::Segment end;
    end.name = name_ + "_end";
    // Generation makes no metrics.
    if (plan_.mesh.world() > 1 && !plan_.FactsAt(form_).generates)
      end.instructions.push_back(ReduceScalars(plan_, stage_.plan));
    const std::int32_t last = stage_.AddSegment(std::move(end));
    stage_.plan.ends[form_] = {.first = first, .last = last};
  }

  const StageInputs& in_;
  const plan::Plan& plan_;
  const plan::FormId form_;
  const CutGraph& graph_;
  const std::string name_;
  const Persistent& persistent_;
  UnfinishedStage& stage_;
};

}  // namespace

void BuildForward(const StageInputs& inputs, const plan::Plan& plan, plan::FormId form,
                  const Persistent& persistent, UnfinishedStage* stage, plan::BufferRef* logits) {
  ForwardBuilder(inputs, plan, form, persistent, stage).Build(logits);
}

}  // namespace engine::compile
