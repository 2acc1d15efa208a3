#include "engine/compile/stage_training.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/compile/place.h"
#include "engine/compile/program.h"
#include "engine/compile/select.h"
#include "engine/compile/slots.h"
#include "engine/compile/stage_passes.h"
#include "engine/compile/transfer_buffers.h"
#include "engine/compile/update.h"
#include "engine/plan/arena.h"
#include "engine/plan/schedule.h"

namespace engine::compile {
namespace {

using Turns = std::vector<plan::Turn>;

// The turns of a program of so many microbatches.
Turns TurnsOf(const plan::Plan& plan, const UnfinishedStage& stage, std::int64_t microbatches) {
  const std::int64_t per_stage = static_cast<std::int64_t>(stage.plan.chunks.size());
  const std::int64_t together = microbatches / plan.halves;
  if (per_stage > 1)
    return plan::InterleavedOneForwardOneBackward(plan.mesh.pp, per_stage, stage.index, together);
  if (plan.schedule == plan::kZeroBubble) return plan::ZeroBubble(plan.mesh.pp, stage.index, together);
  return plan::OneForwardOneBackward(plan.mesh.pp, stage.index, together);
}

// How many microbatches the chunk holds at once at most.
std::int64_t MostHeld(const plan::Plan& plan, const Turns& turns, std::int32_t chunk) {
  const plan::Pass last = plan.schedule == plan::kZeroBubble ? plan::Pass::kWeights : plan::Pass::kBackward;
  std::int64_t held = 0;
  std::int64_t most = 0;
  for (const plan::Turn& turn : turns) {
    if (turn.chunk != chunk) continue;
    if (turn.pass == plan::Pass::kForward) ++held;
    if (turn.pass == last) --held;
    most = std::max(most, held * plan.halves);
  }
  return most;
}

// Those of each training program; they say how many slots a chunk has.
std::vector<Turns> ScheduleTurns(const plan::Plan& plan, UnfinishedStage* stage) {
  std::vector<Turns> turns;
  for (const plan::ProgramSpec& spec : plan.programs) {
    if (spec.form != plan::kTrainForm) continue;
    turns.push_back(TurnsOf(plan, *stage, spec.microbatches));
    for (plan::Chunk& chunk : stage->plan.chunks)
      chunk.slots = std::max(chunk.slots, MostHeld(plan, turns.back(), chunk.index));
  }
  return turns;
}

SlotsByChunk PlaceSlots(const plan::Plan& plan, const StageInputs& inputs, UnfinishedStage* stage) {
  SlotsByChunk slots;
  for (plan::Chunk& chunk : stage->plan.chunks) {
    SlotLayout slot = LayOutSlot(plan, *inputs.train, chunk.index, inputs.policy->hosted_layers);
    chunk.train().inputs = slot.inputs;
    chunk.slot_bytes = slot.bytes;
    chunk.slot_base = stage->Reserve(slot.bytes * chunk.slots);
    stage->plan.memory.activations += slot.bytes * chunk.slots;
    chunk.host_bytes = slot.hosted.bytes;
    chunk.host_base = stage->plan.host_bytes;
    stage->plan.host_bytes += slot.hosted.bytes * chunk.slots;
    slots[chunk.index] = std::move(slot);
  }
  return slots;
}

// The start of an iteration: sums to zero, weights quantised. *transients: how far its own reach.
plan::Segment Begin(const StageInputs& inputs, const plan::Plan& plan, const Storage& persistent,
                    const plan::StagePlan& stage, std::int64_t* transients) {
  plan::Segment begin = BeginSegment("begin", plan, stage, inputs.policy->exchange);
  const HalfStorage storage{.first = persistent, .second = {}};
  for (const plan::Chunk& chunk : stage.chunks) {
    const SelectInputs select{.plan = &plan,
                              .graph = &inputs.train->local,
                              .base = inputs.train->base,
                              .nodes = &inputs.train->prepare[static_cast<size_t>(chunk.index)],
                              .storage = &persistent,
                              .profile = inputs.profile};
    const PlaceInputs place{.plan = &plan, .storage = &storage, .transient_base = stage.transient_base};
    std::int64_t bytes = 0;
    plan::Segment prepare = Place(place, Select(select, "begin", -1), &bytes);
    *transients = std::max(*transients, bytes);
    for (plan::Instruction& instruction : prepare.instructions)
      begin.instructions.push_back(std::move(instruction));
  }
  return begin;
}

// Where the parts of pushed gradients arrive: one place, as each is added up before the next arrives. Its
// bytes.
std::int64_t PlaceSumScratch(std::int64_t offset, std::vector<plan::Segment>* segments) {
  std::int64_t bytes = 0;
  for (plan::Segment& segment : *segments) {
    for (plan::Instruction& instruction : segment.instructions) {
      if (!instruction.IsBucketExchange() || instruction.scratch.elements == 0) continue;
      instruction.scratch.offset = offset;
      bytes = std::max(bytes, plan::Aligned(instruction.scratch.bytes()));
    }
  }
  return bytes;
}

// The segments of all training programs, whose transients share one place, as one segment runs at a time. Returns
// whether halves find an order.
bool AddSegments(const StageInputs& inputs, const plan::Plan& plan, const Persistent& persistent,
                 const SlotsByChunk& slots, const TransferBuffers& buffers, UnfinishedStage* stage) {
  plan::StagePlan& of = stage->plan;
  std::int64_t transients = 0;
  of.transient_base = stage->cursor;
  plan::StagePlan::Ends& ends = of.ends[plan::kTrainForm];
  ends.first = stage->AddSegment(Begin(inputs, plan, persistent.values, of, &transients));
  const PassesInputs passes{
      .stage = &inputs, .plan = &plan, .persistent = &persistent, .slots = &slots, .buffers = &buffers};
  bool in_turns = true;
  for (size_t c = 0; c < of.chunks.size(); ++c) in_turns = BuildPasses(passes, c, stage) && in_turns;
  of.pass_bytes = plan::Aligned(of.pass_bytes);
  const std::int64_t scratch = PlaceSumScratch(of.transient_base + of.pass_bytes, &of.segments);
  transients = std::max(transients, of.pass_bytes + scratch);
  std::int64_t update_bytes = 0;
  ends.last = stage->AddSegment(UpdateSegment(plan, of, inputs.policy->optimizer, inputs.policy->exchange,
                                              *inputs.profile, of.transient_base, &update_bytes));
  transients = std::max(transients, update_bytes);
  of.memory.transients = plan::Aligned(transients);
  stage->Reserve(transients);
  return in_turns;
}

}  // namespace

bool BuildTraining(const StageInputs& inputs, const plan::Plan& plan, const Persistent& persistent,
                   UnfinishedStage* stage) {
  const std::vector<Turns> turns = ScheduleTurns(plan, stage);
  const SlotsByChunk slots = PlaceSlots(plan, inputs, stage);
  const TransferBuffers buffers =
      PlaceTransfers(plan, *inputs.train, plan.halves, slots, stage, &stage->plan.memory.communication);
  const bool in_turns = AddSegments(inputs, plan, persistent, slots, buffers, stage);
  const ProgramInputs program{
      .plan = &plan, .stage = &stage->plan, .buffers = &buffers, .form = plan::kTrainForm};
  for (const Turns& of_one : turns) stage->plan.programs.push_back(UnrollProgram(program, of_one));
  return in_turns;
}

}  // namespace engine::compile
