#include "engine/compile/program.h"

#include <algorithm>
#include <utility>

namespace engine::compile {
namespace {

class Unroller {
 public:
  explicit Unroller(const ProgramInputs& inputs) : in_(inputs) {
    for (const auto& [t, buffers] : in_.buffers->send) {
      const plan::Transfer& transfer = TransferAt(t);
      crossings_[{transfer.from_chunk, PassOf(transfer)}].sends.push_back(t);
    }
    for (const auto& [t, buffers] : in_.buffers->receive) {
      const plan::Transfer& transfer = TransferAt(t);
      crossings_[{transfer.to_chunk, PassOf(transfer)}].receives.push_back(t);
    }
    for (auto& [pass, crossing] : crossings_) {
      std::sort(crossing.sends.begin(), crossing.sends.end());
      std::sort(crossing.receives.begin(), crossing.receives.end());
    }
  }

  plan::Program Run(const std::vector<plan::Turn>& turns) {
    const plan::StagePlan::Ends& ends = in_.stage->ends[in_.form];
    if (ends.first >= 0) Append({.segment = ends.first});
    for (const plan::Turn& turn : turns) Unroll(turn);
    if (ends.last >= 0) Append({.segment = ends.last});
    return std::move(program_);
  }

 private:
  // Transfers over the borders of a chunk in one of its passes, in the plan's order.
  struct Crossing {
    std::vector<std::int32_t> receives, sends;
  };

  std::int32_t Append(plan::Step step) {
    std::sort(step.waits.begin(), step.waits.end());
    step.waits.erase(std::unique(step.waits.begin(), step.waits.end()), step.waits.end());
    program_.push_back(std::move(step));
    return static_cast<std::int32_t>(program_.size() - 1);
  }

  const plan::Chunk& ChunkAt(std::int32_t index) const {
    return *std::find_if(in_.stage->chunks.begin(), in_.stage->chunks.end(),
                         [&](const plan::Chunk& chunk) { return chunk.index == index; });
  }

  const plan::Transfer& TransferAt(std::int32_t t) const {
    return in_.plan->transfers[static_cast<size_t>(t)];
  }
  static plan::Pass PassOf(const plan::Transfer& transfer) {
    return transfer.to_chunk < transfer.from_chunk ? plan::Pass::kBackward : plan::Pass::kForward;
  }

  // Microbatches that a turn runs, and slots that it takes, one after the other.
  std::int32_t Halves() const { return static_cast<std::int32_t>(in_.plan->HalvesOf(in_.form)); }

  // The first of the turn's slots.
  std::int32_t TakeSlot(const plan::Turn& turn) {
    if (!in_.plan->FactsAt(in_.form).trains) return -1;
    std::vector<std::int32_t>& slots = slots_[turn.chunk];
    slots.resize(static_cast<size_t>(ChunkAt(turn.chunk).slots / Halves()), -1);
    const std::int32_t wanted = turn.pass == plan::Pass::kForward ? -1 : turn.microbatch;
    const auto it = std::find(slots.begin(), slots.end(), wanted);
    ENGINE_CHECK(it != slots.end(), "chunk {} has no slot for microbatch {}", turn.chunk, turn.microbatch);
    *it = IsLast(turn) ? -1 : turn.microbatch;
    return static_cast<std::int32_t>(it - slots.begin()) * Halves();
  }

  // Whether the microbatch passes the chunk for the last time.
  bool IsLast(const plan::Turn& turn) const {
    return turn.pass ==
           (ChunkAt(turn.chunk).passes[in_.form].weights >= 0 ? plan::Pass::kWeights : plan::Pass::kBackward);
  }

  std::int32_t SegmentOf(const plan::Turn& turn) const {
    const plan::ChunkPasses& passes = ChunkAt(turn.chunk).passes[in_.form];
    if (turn.pass == plan::Pass::kForward) return passes.forward;
    return turn.pass == plan::Pass::kBackward ? passes.backward : passes.weights;
  }

  // What a turn waits for comes before it, of both halves, and behind it what it sends.
  void Unroll(const plan::Turn& turn) {
    const Crossing& crossing = crossings_[{turn.chunk, turn.pass}];
    const std::int32_t slot = TakeSlot(turn);
    plan::Step run{.kind = plan::StepKind::kRun,
                   .segment = SegmentOf(turn),
                   .microbatch = turn.microbatch * Halves(),
                   .slot = slot,
                   .chunk = turn.chunk};
    for (std::int32_t half = 0; half < Halves(); ++half) {
      for (std::int32_t t : crossing.receives) run.waits.push_back(Receive(t, turn, half, slot));
      for (std::int32_t t : crossing.sends) {
        if (in_.buffers->send.at(t)[0].in_slot) continue;  // waited for as its slot is
        if (const auto it = last_send_.find({t, half}); it != last_send_.end())
          run.waits.push_back(it->second);
      }
    }
    // A later pass may take over what has been sent from the slot.
    if (const auto sent = slot_sends_.find({turn.chunk, slot}); sent != slot_sends_.end()) {
      run.waits.insert(run.waits.end(), sent->second.begin(), sent->second.end());
      slot_sends_.erase(sent);
    }
    const std::int32_t ran = Append(std::move(run));
    for (std::int32_t half = 0; half < Halves(); ++half) Ran(turn, crossing, half, slot, ran);
    if (IsLast(turn)) slot_released_[{turn.chunk, slot}] = ran;
  }

  // After the step `ran`.
  void Ran(const plan::Turn& turn, const Crossing& crossing, std::int32_t half, std::int32_t slot,
           std::int32_t ran) {
    // Who last read (or will have read) the buffers that this turn's receives filled.
    for (std::int32_t t : crossing.receives)
      last_reader_[{t, PlaceOf(in_.buffers->receive.at(t), half, slot)}] = ran;
    for (std::int32_t t : crossing.sends) Send(t, turn, half, slot, ran);
    // What the chunk relays is read where it was received until it is sent.
    for (std::int32_t t : crossing.receives) {
      if (in_.buffers->receive.at(t)[0].in_slot) continue;
      for (std::int32_t next : crossing.sends) {
        if (next > t && TransferAt(next).value == TransferAt(t).value)
          last_reader_[{t, half}] = last_send_[{next, half}];
      }
    }
  }

  // The slot, or the half, that the buffer is one of.
  static std::int32_t PlaceOf(const HalfBuffers& buffers, std::int32_t half, std::int32_t slot) {
    return buffers[0].in_slot ? slot : half;
  }

  std::int32_t Receive(std::int32_t t, const plan::Turn& turn, std::int32_t half, std::int32_t slot) {
    const HalfBuffers& buffers = in_.buffers->receive.at(t);
    plan::Step step{
        .kind = plan::StepKind::kReceive,
        .transfer = t,
        .microbatch = turn.microbatch * Halves() + half,
        .slot = buffers[0].in_slot ? slot : -1,
        .chunk = turn.chunk,
        .stream = turn.pass == plan::Pass::kBackward ? plan::kReceiveNext : plan::kReceivePrevious,
        .buffer = buffers[static_cast<size_t>(half)],
        .waits = {}};
    if (buffers[0].in_slot) {
      if (const auto it = slot_released_.find({turn.chunk, slot}); it != slot_released_.end()) {
        step.waits.push_back(it->second);
      }
    } else if (const auto it = last_reader_.find({t, half}); it != last_reader_.end()) {
      step.waits.push_back(it->second);
    }
    return Append(std::move(step));
  }

  void Send(std::int32_t t, const plan::Turn& turn, std::int32_t half, std::int32_t slot,
            std::int32_t after) {
    const bool in_slot = in_.buffers->send.at(t)[0].in_slot;
    last_send_[{t, half}] =
        Append({.kind = plan::StepKind::kSend,
                .transfer = t,
                .microbatch = turn.microbatch * Halves() + half,
                .slot = in_slot ? slot : -1,
                .chunk = turn.chunk,
                .stream = turn.pass == plan::Pass::kBackward ? plan::kSendPrevious : plan::kSendNext,
                .buffer = in_.buffers->send.at(t)[static_cast<size_t>(half)],
                .waits = {after}});
    if (in_slot) slot_sends_[{turn.chunk, slot}].push_back(last_send_[{t, half}]);
  }

  const ProgramInputs& in_;
  // By chunk and pass. Only transfers of this program's graph have buffers, and these only in its stage.
  absl::flat_hash_map<std::pair<std::int32_t, plan::Pass>, Crossing> crossings_;
  plan::Program program_;
  // The turn's microbatch in each slot, or pair of slots; −1: free.
  absl::flat_hash_map<std::int32_t, std::vector<std::int32_t>> slots_;
  absl::flat_hash_map<std::pair<std::int32_t, std::int32_t>, std::int32_t> last_send_;  // by transfer, half
  // By transfer and slot, or half.
  absl::flat_hash_map<std::pair<std::int32_t, std::int32_t>, std::int32_t> last_reader_;
  absl::flat_hash_map<std::pair<std::int32_t, std::int32_t>, std::int32_t> slot_released_;
  // By chunk and slot: steps that send from it, until a later pass has waited for them.
  absl::flat_hash_map<std::pair<std::int32_t, std::int32_t>, std::vector<std::int32_t>> slot_sends_;
};

}  // namespace

plan::Program UnrollProgram(const ProgramInputs& inputs, const std::vector<plan::Turn>& turns) {
  return Unroller(inputs).Run(turns);
}

}  // namespace engine::compile
