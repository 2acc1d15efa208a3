#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <array>

#include "engine/plan/schedule.h"
#include "engine/verify/text.h"
#include "engine/verify/verify.h"

namespace engine::verify {
namespace {

// One stage's program. What a turn reads and writes at its borders is known from the transfers of its chunk;
// that its segment does so at these places is what VerifySegments shows.
class StepVerifier {
 public:
  StepVerifier(const plan::Plan& plan, ProgramId id)
      : plan_(plan),
        id_(id),
        spec_(plan.ProgramAt(id.program)),
        trains_(plan::FactsOf(spec_.kind).trains),
        stage_(plan.stages[static_cast<size_t>(id.stage)]),
        program_(ProgramOf(plan, id)) {}

  absl::Status Run() {
    RETURN_IF_ERROR(ProgramWellFormed(plan_, id_));
    Clocks();
    CollectPlaces();
    for (const plan::Chunk& chunk : stage_.chunks) {
      ChunkState& state = chunks_[chunk.index];
      state.holder.assign(static_cast<size_t>(chunk.slots), -1);
      state.released.assign(static_cast<size_t>(chunk.slots), -1);
      state.done.assign(static_cast<size_t>(spec_.microbatches), 0);
      if (trains_) state.passes = chunk.passes[spec_.kind].weights >= 0 ? 3 : 2;
    }
    for (size_t i = 0; i < program_.size(); ++i) {
      const plan::Step& step = program_[i];
      switch (step.kind) {
        case plan::StepKind::kRun:
          RETURN_IF_ERROR(RunStep(i));
          break;
        case plan::StepKind::kSend:
          RETURN_IF_ERROR(Send(i));
          break;
        case plan::StepKind::kReceive:
          RETURN_IF_ERROR(Receive(i));
          break;
      }
    }
    return Finish();
  }

 private:
  struct ChunkState {
    std::vector<std::int32_t> holder;    // microbatch in each slot; −1: free
    std::vector<std::int32_t> released;  // step of the pass that last gave the slot back
    std::vector<int> done;               // passes, by microbatch
    int passes = 1;                      // that a microbatch makes
  };
  struct SendState {
    std::int32_t microbatch = -1;  // in the buffer
    std::int32_t writer = -1;      // step
    std::int32_t sent = -1;        // step; −1: still to be sent
  };
  struct ReceiveState {
    std::int32_t microbatch = -1;
    std::int32_t received = -1;  // step
    std::int32_t reader = -1;    // last step that read it; −1: none yet
  };

  template <typename Index>
  std::string Name(Index step) const {
    return StepName(plan_, id_, static_cast<size_t>(step));
  }
  const plan::Transfer& TransferAt(std::int32_t t) const { return plan_.transfers[static_cast<size_t>(t)]; }

  // clock_[i][s]: 1 + the last step of stream s that has completed when step i has.
  void Clocks() {
    clock_.resize(program_.size());
    std::array<std::int32_t, plan::kStreams> last;
    last.fill(-1);
    const auto join = [&](size_t into, std::int32_t from) {
      for (size_t s = 0; s < plan::kStreams; ++s) {
        clock_[into][s] = std::max(clock_[into][s], clock_[static_cast<size_t>(from)][s]);
      }
    };
    for (size_t i = 0; i < program_.size(); ++i) {
      clock_[i].fill(0);
      const size_t stream = static_cast<size_t>(program_[i].stream);
      if (last[stream] >= 0) join(i, last[stream]);
      for (std::int32_t wait : program_[i].waits) join(i, wait);
      clock_[i][stream] = static_cast<std::int32_t>(i) + 1;
      last[stream] = static_cast<std::int32_t>(i);
    }
  }

  // Whether step `first` has completed before step `then` starts, by this stage's streams and waits alone.
  bool Before(std::int32_t first, size_t then) const {
    return clock_[then][static_cast<size_t>(program_[static_cast<size_t>(first)].stream)] > first;
  }

  // Transfers of this program at the border of each chunk.
  void CollectPlaces() {
    for (const plan::Step& step : program_) {
      if (step.kind == plan::StepKind::kSend) {
        if (sent_in_slot_.try_emplace(step.transfer, step.buffer.in_slot).second)
          sent_by_[TransferAt(step.transfer).from_chunk].push_back(step.transfer);
      } else if (step.kind == plan::StepKind::kReceive) {
        if (in_slot_.try_emplace(step.transfer, step.buffer.in_slot).second) {
          received_by_[TransferAt(step.transfer).to_chunk].push_back(step.transfer);
        }
      }
    }
  }

  absl::Status RunStep(size_t i) {
    const plan::Step& step = program_[i];
    const bool first = i == 0;
    const bool last = i + 1 == program_.size();
    const plan::StagePlan::Ends& ends = stage_.ends[spec_.kind];
    if (first != (step.segment == ends.first) || last != (step.segment == ends.last)) {
      return Internal("{}: a program starts with {} and ends with {}, each once", Name(i),
                      SegmentName(ends.first), SegmentName(ends.last));
    }
    if (first || last) return absl::OkStatus();
    const plan::Segment& segment = stage_.segments[static_cast<size_t>(step.segment)];
    const auto chunk = std::find_if(stage_.chunks.begin(), stage_.chunks.end(),
                                    [&](const plan::Chunk& c) { return c.index == segment.chunk; });
    if (chunk == stage_.chunks.end() || step.chunk != chunk->index) {
      return Internal("{} runs a segment of chunk {} for chunk {}", Name(i), segment.chunk, step.chunk);
    }
    const plan::ChunkPasses& passes = chunk->passes[spec_.kind];
    plan::Pass pass = plan::Pass::kForward;
    if (step.segment == passes.backward) pass = plan::Pass::kBackward;
    if (step.segment == passes.weights) pass = plan::Pass::kWeights;
    if (pass == plan::Pass::kForward && step.segment != passes.forward)
      return Internal("{} does not belong here", Name(i));
    if (step.microbatch % Halves() != 0 || (step.slot >= 0 && step.slot % Halves() != 0))
      return Internal("{} runs microbatch {} in slot {}, no first half in its slot", Name(i), step.microbatch,
                      step.slot);
    for (std::int32_t half = 0; half < Halves(); ++half) {
      plan::Step of = step;
      of.microbatch += half;
      of.slot += of.slot >= 0 ? half : 0;
      if (of.microbatch >= spec_.microbatches)
        return Internal("{}: there are {} microbatches", Name(i), spec_.microbatches);
      RETURN_IF_ERROR(Turn(i, of, pass));
      RETURN_IF_ERROR(SentFromSlot(i, of, pass));
      if (pass == plan::Pass::kWeights) continue;  // reads its slot alone
      RETURN_IF_ERROR(Reads(i, of, pass));
      RETURN_IF_ERROR(Writes(i, of, pass));
    }
    return absl::OkStatus();
  }

  // Microbatches that a step runs, one after the other.
  std::int32_t Halves() const { return static_cast<std::int32_t>(plan_.HalvesOf(spec_.kind)); }

  std::string SegmentName(std::int32_t segment) const {
    return segment < 0 ? "nothing" : stage_.segments[static_cast<size_t>(segment)].name;
  }

  // Order of the passes of a microbatch, and who holds the slot. `step`: as if it ran one half alone.
  absl::Status Turn(size_t i, const plan::Step& step, plan::Pass pass) {
    ChunkState& state = chunks_.at(step.chunk);
    int& done = state.done[static_cast<size_t>(step.microbatch)];
    const int before = static_cast<int>(pass);
    if (done != before) {
      return Internal("{}: microbatch {} {} chunk {}", Name(i), step.microbatch,
                      done > before ? "has already passed"
                      : done == 0   ? "has not passed forward through"
                                    : "has not passed backward through",
                      step.chunk);
    }
    ++done;
    const bool sums = pass != plan::Pass::kForward;
    if (sums && step.microbatch != 0 && state.done[0] <= before) {
      return Internal(
          "{} adds to gradients before microbatch 0 has overwritten those of the iteration before", Name(i));
    }
    const bool last = sums && step.microbatch + 1 == spec_.microbatches;
    if (last && std::any_of(state.done.begin(), state.done.end(), [&](int n) { return n <= before; })) {
      return Internal("{} reduces the gradients of chunk {}, to which other microbatches have still to add",
                      Name(i), step.chunk);
    }
    if (!trains_) return absl::OkStatus();
    if (step.slot < 0 || static_cast<size_t>(step.slot) >= state.holder.size()) {
      return Internal("{} uses slot {} of {}", Name(i), step.slot, state.holder.size());
    }
    std::int32_t& holder = state.holder[static_cast<size_t>(step.slot)];
    if (!sums && holder >= 0) {
      return Internal("{} takes slot {} of chunk {}, which microbatch {} still holds", Name(i), step.slot,
                      step.chunk, holder);
    }
    if (sums && holder != step.microbatch) {
      return Internal("{} reads slot {} of chunk {}, which {}", Name(i), step.slot, step.chunk,
                      holder < 0 ? "is free" : fmt::format("holds microbatch {}", holder));
    }
    const bool gives_back = done == state.passes;
    holder = gives_back ? -1 : step.microbatch;
    if (gives_back) state.released[static_cast<size_t>(step.slot)] = static_cast<std::int32_t>(i);
    return absl::OkStatus();
  }

  // Buffers outside of slots are those of a half (PipelineBuffersOf).
  std::int32_t HalfOf(const plan::Step& step) const { return step.microbatch % Halves(); }
  // The slot of the microbatch that a step sends or receives: a step names the first of two.
  std::int32_t SlotOf(const plan::Step& step) const {
    return step.slot < 0 || step.kind == plan::StepKind::kRun ? step.slot : step.slot + HalfOf(step);
  }

  // The pass before which a transfer's value comes, or behind which it goes.
  plan::Pass PassOf(std::int32_t t) const {
    return IsBackward(TransferAt(t)) ? plan::Pass::kBackward : plan::Pass::kForward;
  }

  absl::Status Reads(size_t i, const plan::Step& step, plan::Pass pass) {
    for (std::int32_t t : received_by_[step.chunk]) {
      const bool kept = in_slot_.at(t);
      // A backward pass also reads what its forward pass received into the slot.
      if (PassOf(t) != pass && !(kept && PassOf(t) < pass)) continue;
      ReceiveState& state = receives_[{t, kept ? SlotOf(step) : HalfOf(step)}];
      if (state.received < 0 || state.microbatch != step.microbatch) {
        return Internal(
            "{} reads {}, but its buffer holds {}", Name(i), NameOf(plan_, TransferAt(t).value),
            state.received < 0 ? "nothing yet" : fmt::format("that of microbatch {}", state.microbatch));
      }
      if (!Before(state.received, i)) {
        return Internal("{} does not wait for {}, which it reads", Name(i), Name(state.received));
      }
      state.reader = static_cast<std::int32_t>(i);
    }
    return absl::OkStatus();
  }

  SendState& SendOf(std::int32_t t, const plan::Step& step) {
    return sends_[{t, sent_in_slot_.at(t) ? SlotOf(step) : HalfOf(step)}];
  }

  // A later pass may overwrite the slot's values, when those that are sent from there have been.
  absl::Status SentFromSlot(size_t i, const plan::Step& step, plan::Pass pass) {
    for (std::int32_t t : sent_by_[step.chunk]) {
      if (!sent_in_slot_.at(t) || PassOf(t) >= pass) continue;
      const SendState& state = SendOf(t, step);
      if (state.microbatch == step.microbatch && state.sent >= 0 && Before(state.sent, i)) continue;
      return Internal("{} may overwrite {} in its slot before it is sent", Name(i),
                      NameOf(plan_, TransferAt(t).value));
    }
    return absl::OkStatus();
  }

  // What the chunk relays of this transfer's value stays where it was received until it has been sent.
  absl::Status Relayed(size_t i) {
    const plan::Step& step = program_[i];
    const plan::Transfer& arrives = TransferAt(step.transfer);
    for (std::int32_t t : sent_by_[arrives.to_chunk]) {
      if (TransferAt(t).value != arrives.value) continue;
      const SendState& state = SendOf(t, step);
      if (state.writer < 0 || (state.sent >= 0 && Before(state.sent, i))) continue;
      return Internal("{} overwrites what {}, and does not wait for it", Name(i),
                      state.sent < 0 ? "is still to be relayed" : fmt::format("{} relays", Name(state.sent)));
    }
    return absl::OkStatus();
  }

  absl::Status Writes(size_t i, const plan::Step& step, plan::Pass pass) {
    for (std::int32_t t : sent_by_[step.chunk]) {
      if (PassOf(t) != pass) continue;
      SendState& state = SendOf(t, step);
      if (state.writer >= 0 && state.sent < 0) {
        return Internal("{} overwrites {} of microbatch {} before it is sent", Name(i),
                        NameOf(plan_, TransferAt(t).value), state.microbatch);
      }
      if (state.sent >= 0 && !Before(state.sent, i)) {
        return Internal("{} overwrites the buffer that {} sends, and does not wait for it", Name(i),
                        Name(state.sent));
      }
      state.microbatch = step.microbatch;
      state.writer = static_cast<std::int32_t>(i);
      state.sent = -1;
    }
    return absl::OkStatus();
  }

  absl::Status Send(size_t i) {
    const plan::Step& step = program_[i];
    SendState& state = SendOf(step.transfer, step);
    if (state.writer < 0 || state.microbatch != step.microbatch) {
      return Internal("{}: its buffer holds {}", Name(i),
                      state.writer < 0 ? "nothing yet" : fmt::format("microbatch {}", state.microbatch));
    }
    if (state.sent >= 0) return Internal("{} repeats {}", Name(i), Name(state.sent));
    if (!Before(state.writer, i)) {
      return Internal("{} does not wait for {}, which writes what it sends", Name(i), Name(state.writer));
    }
    state.sent = static_cast<std::int32_t>(i);
    return absl::OkStatus();
  }

  absl::Status Receive(size_t i) {
    const plan::Step& step = program_[i];
    const std::int32_t chunk = TransferAt(step.transfer).to_chunk;
    const bool kept = step.buffer.in_slot;
    if (kept) RETURN_IF_ERROR(ReceiveIntoSlot(i, chunk));
    ReceiveState& state = receives_[{step.transfer, kept ? SlotOf(step) : HalfOf(step)}];
    if (state.received >= 0 && state.reader < 0) {
      return Internal("{} overwrites microbatch {}, which nothing has read", Name(i), state.microbatch);
    }
    if (state.received >= 0 && !Before(state.reader, i)) {
      return Internal("{} overwrites what {} reads, and does not wait for it", Name(i), Name(state.reader));
    }
    RETURN_IF_ERROR(Relayed(i));
    state = {.microbatch = step.microbatch, .received = static_cast<std::int32_t>(i), .reader = -1};
    return absl::OkStatus();
  }

  absl::Status ReceiveIntoSlot(size_t i, std::int32_t chunk_index) {
    const plan::Step& step = program_[i];
    const auto chunk = chunks_.find(chunk_index);
    const std::int32_t slot = SlotOf(step);
    if (chunk == chunks_.end() || slot < 0 || step.slot % Halves() != 0 ||
        static_cast<size_t>(slot) >= chunk->second.holder.size()) {
      return Internal("{} has no slot {}", Name(i), step.slot);
    }
    const ChunkState& state = chunk->second;
    const std::int32_t holder = state.holder[static_cast<size_t>(slot)];
    const std::int32_t released = state.released[static_cast<size_t>(slot)];
    // What comes for the backward pass finds the slot taken by the forward pass.
    const std::int32_t wanted = PassOf(step.transfer) == plan::Pass::kForward ? -1 : step.microbatch;
    if (holder < 0 && wanted >= 0) {
      return Internal("{} writes into slot {} of chunk {}, which is free", Name(i), slot, chunk_index);
    }
    if (holder != wanted) {
      return Internal("{} writes into slot {} of chunk {}, which microbatch {} still holds", Name(i), slot,
                      chunk_index, holder);
    }
    if (released >= 0 && !Before(released, i)) {
      return Internal("{} writes into the slot that {} reads, and does not wait for it", Name(i),
                      Name(released));
    }
    return absl::OkStatus();
  }

  absl::Status Finish() const {
    for (const auto& [chunk, state] : chunks_) {
      for (size_t m = 0; m < state.done.size(); ++m) {
        if (state.done[m] == state.passes) continue;
        constexpr const char* kPassed[] = {"never", "forward only",
                                           "without making the gradients of weights"};
        return Internal("stage {} {}: microbatch {} passes chunk {} {}", id_.stage,
                        plan_.ProgramName(id_.program), m, chunk, kPassed[state.done[m]]);
      }
    }
    for (const auto& [t, state] : sends_) {
      if (state.writer >= 0 && state.sent < 0) {
        return Internal("{} makes {}, which is never sent", Name(state.writer),
                        NameOf(plan_, TransferAt(t.first).value));
      }
    }
    return absl::OkStatus();
  }

  const plan::Plan& plan_;
  const ProgramId id_;
  const plan::ProgramSpec& spec_;
  const bool trains_;
  const plan::StagePlan& stage_;
  const plan::Program& program_;
  std::vector<std::array<std::int32_t, plan::kStreams>> clock_;
  absl::flat_hash_map<std::int32_t, ChunkState> chunks_;
  absl::flat_hash_map<std::int32_t, bool> sent_in_slot_;  // by transfer sent
  // By transfer and slot, or half.
  absl::flat_hash_map<std::pair<std::int32_t, std::int32_t>, SendState> sends_;
  absl::flat_hash_map<std::pair<std::int32_t, std::int32_t>, ReceiveState> receives_;
  absl::flat_hash_map<std::int32_t, bool> in_slot_;  // by transfer received
  absl::flat_hash_map<std::int32_t, std::vector<std::int32_t>> sent_by_, received_by_;  // transfers, by chunk
};

}  // namespace

absl::Status VerifySteps(const plan::Plan& plan) {
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const std::int32_t stage = static_cast<std::int32_t>(s);
    for (size_t p = 0; p < plan.programs.size(); ++p)
      RETURN_IF_ERROR(StepVerifier(plan, {stage, static_cast<std::int32_t>(p)}).Run());
  }
  return absl::OkStatus();
}

}  // namespace engine::verify
