#include "engine/search/chunk_facts.h"

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/ops/fp8.h"
#include "engine/plan/arena.h"
#include "engine/predict/cost.h"
#include "engine/predict/predict.h"

namespace engine::search {
namespace {

using plan::Aligned;
using plan::BufferRef;
using plan::Instruction;
using plan::Plan;
using plan::Segment;
using plan::StagePlan;

// How far what lies at `base` and behind it reaches.
std::int64_t Reach(const Segment& segment, std::int64_t base) {
  std::int64_t end = base;
  const auto see = [&](const BufferRef& ref) {
    if (ref.elements > 0 && !ref.in_slot && ref.offset >= base)
      end = std::max(end, ref.offset + Aligned(ref.bytes()));
  };
  for (const Instruction& instruction : segment.instructions) {
    for (const BufferRef& ref : instruction.outputs) see(ref);
    see(instruction.scratch);
  }
  return end - base;
}

PassTime TimeOf(const predict::CostModel& costs, const StagePlan& stage, std::int32_t segment) {
  PassTime time;
  if (segment < 0) return time;
  for (const Instruction& instruction : stage.segments[static_cast<size_t>(segment)].instructions) {
    const bool exchange = !instruction.group().empty();
    (exchange ? time.exchange_s : time.compute_s) += costs.Seconds(instruction);
    time.compute_s += costs.FinishSeconds(instruction);
  }
  return time;
}

// Bytes of the buffers that a program's transfers have outside of slots.
std::int64_t TransferBytes(const plan::Program& program) {
  absl::flat_hash_map<std::pair<std::int32_t, bool>, std::int64_t> bytes;
  for (const plan::Step& step : program) {
    if (step.kind == plan::StepKind::kRun || step.buffer.in_slot) continue;
    bytes[{step.transfer, step.kind == plan::StepKind::kSend}] = Aligned(step.buffer.bytes());
  }
  std::int64_t sum = 0;
  for (const auto& [transfer, of] : bytes) sum += of;
  return sum;
}

// Seconds of the passes, where a microbatch runs alone.
void TimeAlone(const StagePlan& stage, const predict::CostModel& costs, ChunkFacts* facts) {
  facts->forward = TimeOf(costs, stage, stage.chunks[0].train().forward);
  facts->backward = TimeOf(costs, stage, stage.chunks[0].train().backward);
  facts->weights = TimeOf(costs, stage, stage.chunks[0].train().weights);
}

// And where two run in turns: of the first two.
void TimeInTurns(const Plan& probe, const recipe::Cluster& cluster, std::vector<ChunkFacts>* facts) {
  struct Span {
    double begin = -1, end = 0, waits = 0, behind = 0;
  };
  absl::flat_hash_map<const Segment*, Span> spans;
  std::vector<predict::PlayedEvent> events;
  predict::Predict(probe, cluster, &events);
  const double await_s = predict::CostModel(probe, cluster).AwaitSeconds();
  for (const predict::PlayedEvent& event : events) {
    if (event.segment == nullptr || event.microbatch >= probe.halves) continue;
    Span& span = spans[event.segment];
    if (span.begin < 0) span.begin = event.begin_s;
    span.end = std::max(span.end, event.end_s);
    const double seconds = event.end_s - event.begin_s;
    if (event.stream != plan::kComputeStream) span.behind += seconds;
    // The rest is as good as computation: it is there whatever is exchanged.
    const bool waits = event.part == predict::PlayedEvent::Part::kWait;
    if (waits) span.waits += std::max(0.0, seconds - await_s);
  }
  for (size_t s = 0; s < facts->size(); ++s) {
    const StagePlan& stage = probe.stages[s];
    const auto time = [&](std::int32_t index) -> PassTime {
      if (index < 0) return {};
      const Span& span = spans[&stage.segments[static_cast<size_t>(index)]];
      return {.compute_s = span.end - std::max(0.0, span.begin) - span.waits,
              .exchange_s = span.waits,
              .behind_s = span.behind};
    };
    ChunkFacts& of = (*facts)[s];
    of.forward = time(stage.chunks[0].train().forward);
    of.backward = time(stage.chunks[0].train().backward);
    of.weights = time(stage.chunks[0].train().weights);
  }
}

ChunkFacts Bytes(const Plan& probe, const StagePlan& stage, const predict::CostModel& costs) {
  const plan::Chunk& chunk = stage.chunks[0];
  const auto segment = [&](std::int32_t index) -> const Segment& {
    return stage.segments[static_cast<size_t>(index)];
  };
  ChunkFacts facts;
  facts.slot_bytes = chunk.slot_bytes;
  for (const BufferRef& ref : stage.derived) facts.derived_bytes += Aligned(ref.bytes());
  facts.states = stage.scales.elements / ops::kScaleNumbers;
  facts.begin = TimeOf(costs, stage, stage.begin());
  facts.begin_bytes = Reach(segment(stage.begin()), stage.transient_base);
  facts.pass_bytes = stage.pass_bytes;
  facts.transfer_bytes = stage.memory.communication;
  facts.fed_elements = chunk.incoming.elements / probe.microbatches;
  if (chunk.evaluate().forward < 0) return facts;
  ChunkFacts::Evaluation& evaluation = facts.evaluation;
  evaluation.transfer_bytes =
      TransferBytes(stage.programs[static_cast<size_t>(probe.ProgramOf(plan::kEvaluateForm))]);
  for (const BufferRef& ref : chunk.evaluate().inputs) evaluation.fed_bytes += Aligned(ref.bytes());
  const plan::MemoryBreakdown& memory = stage.memory;
  const std::int64_t transients = memory.parameters + memory.gradients + memory.optimizer + memory.control +
                                  evaluation.transfer_bytes + evaluation.fed_bytes;
  evaluation.bytes = Reach(segment(chunk.evaluate().forward), transients);
  return facts;
}

}  // namespace

bool GrowsEvenly(const ChunkFacts& a, const ChunkFacts& b, const ChunkFacts& c) {
  return c.slot_bytes - a.slot_bytes == kFarther * (b.slot_bytes - a.slot_bytes) &&
         a.pass_bytes == b.pass_bytes && b.pass_bytes == c.pass_bytes && a.begin_bytes == c.begin_bytes &&
         a.evaluation.bytes == c.evaluation.bytes;
}

ChunkFacts Longer(ChunkFacts of, std::int64_t blocks, const ChunkFacts& less, const ChunkFacts& more) {
  const double n = static_cast<double>(blocks);
  of.slot_bytes += blocks * (more.slot_bytes - less.slot_bytes);
  of.derived_bytes += blocks * (more.derived_bytes - less.derived_bytes);
  of.states += blocks * (more.states - less.states);
  of.begin = of.begin + (more.begin - less.begin) * n;
  of.forward = of.forward + (more.forward - less.forward) * n;
  of.backward = of.backward + (more.backward - less.backward) * n;
  of.weights = of.weights + (more.weights - less.weights) * n;
  return of;
}

std::vector<ChunkFacts> FactsOf(const Plan& probe, const recipe::Cluster& cluster) {
  const predict::CostModel costs(probe, cluster);
  std::vector<ChunkFacts> facts;
  for (const StagePlan& stage : probe.stages) {
    facts.push_back(Bytes(probe, stage, costs));
    if (probe.halves == 1) TimeAlone(stage, costs, &facts.back());
  }
  if (probe.halves > 1) TimeInTurns(probe, cluster, &facts);
  return facts;
}

}  // namespace engine::search
