#include "engine/plan/program.h"

#include <algorithm>
#include <utility>

namespace engine::plan {
namespace {

class Unroller {
 public:
  explicit Unroller(const ProgramInputs& inputs) : in_(inputs) {}

  Program Run(const std::vector<Turn>& turns) {
    if (in_.first_segment >= 0) Append({.segment = in_.first_segment});
    for (const Turn& turn : turns) Unroll(turn);
    if (in_.last_segment >= 0) Append({.segment = in_.last_segment});
    return std::move(program_);
  }

 private:
  std::int32_t Append(Step step) {
    std::sort(step.waits.begin(), step.waits.end());
    step.waits.erase(std::unique(step.waits.begin(), step.waits.end()), step.waits.end());
    program_.push_back(std::move(step));
    return static_cast<std::int32_t>(program_.size() - 1);
  }

  const Chunk& ChunkAt(std::int32_t index) const {
    return *std::find_if(in_.stage->chunks.begin(), in_.stage->chunks.end(),
                         [&](const Chunk& chunk) { return chunk.index == index; });
  }

  static Pass PassOf(const Transfer& transfer) {
    return transfer.to_chunk < transfer.from_chunk ? Pass::kBackward : Pass::kForward;
  }
  // Transfers of this program's graph have buffers; those of the other program have none here.
  bool Sends(std::int32_t t, const Turn& turn) const {
    const Transfer& transfer = in_.plan->transfers[static_cast<size_t>(t)];
    return transfer.from_chunk == turn.chunk && PassOf(transfer) == turn.pass &&
           in_.buffers->send.contains(t);
  }
  bool Receives(std::int32_t t, const Turn& turn) const {
    const Transfer& transfer = in_.plan->transfers[static_cast<size_t>(t)];
    return transfer.to_chunk == turn.chunk && PassOf(transfer) == turn.pass &&
           in_.buffers->receive.contains(t);
  }

  std::int32_t TakeSlot(const Turn& turn) {
    if (in_.evaluate) return -1;
    std::vector<std::int32_t>& slots = slots_[turn.chunk];
    slots.resize(static_cast<size_t>(ChunkAt(turn.chunk).slots), -1);
    const std::int32_t wanted = turn.pass == Pass::kForward ? -1 : turn.microbatch;
    const auto it = std::find(slots.begin(), slots.end(), wanted);
    ENGINE_CHECK(it != slots.end(), "chunk {} has no slot for microbatch {}", turn.chunk, turn.microbatch);
    *it = IsLast(turn) ? -1 : turn.microbatch;
    return static_cast<std::int32_t>(it - slots.begin());
  }

  // Whether the microbatch passes the chunk for the last time.
  bool IsLast(const Turn& turn) const {
    return turn.pass == (ChunkAt(turn.chunk).weights >= 0 ? Pass::kWeights : Pass::kBackward);
  }

  std::int32_t SegmentOf(const Turn& turn) const {
    const Chunk& chunk = ChunkAt(turn.chunk);
    if (in_.evaluate) return chunk.evaluate;
    if (turn.pass == Pass::kForward) return chunk.forward;
    return turn.pass == Pass::kBackward ? chunk.backward : chunk.weights;
  }

  void Unroll(const Turn& turn) {
    const std::int32_t slot = TakeSlot(turn);
    Step run{.kind = StepKind::kRun, .microbatch = turn.microbatch, .slot = slot, .chunk = turn.chunk};
    run.segment = SegmentOf(turn);
    run.paired = !in_.evaluate && turn.microbatch % in_.plan->lanes + 1 < in_.plan->lanes;
    const std::int32_t transfers = static_cast<std::int32_t>(in_.plan->transfers.size());
    for (std::int32_t t = 0; t < transfers; ++t) {
      if (Receives(t, turn)) run.waits.push_back(Receive(t, turn, slot));
      if (Sends(t, turn) && last_send_.contains(t)) run.waits.push_back(last_send_[t]);
    }
    const std::int32_t ran = Append(std::move(run));
    // Who last read (or will have read) the buffers that this turn's receives filled.
    for (std::int32_t t = 0; t < transfers; ++t) {
      if (Receives(t, turn)) last_reader_[{t, in_.buffers->receive.at(t).in_slot ? slot : 0}] = ran;
      if (Sends(t, turn)) Send(t, turn, ran);
    }
    if (IsLast(turn)) slot_released_[{turn.chunk, slot}] = ran;
  }

  std::int32_t Receive(std::int32_t t, const Turn& turn, std::int32_t slot) {
    const BufferRef& buffer = in_.buffers->receive.at(t);
    Step step{.kind = StepKind::kReceive,
              .transfer = t,
              .microbatch = turn.microbatch,
              .slot = buffer.in_slot ? slot : -1,
              .chunk = turn.chunk,
              .stream = turn.pass == Pass::kBackward ? kReceiveNext : kReceivePrevious,
              .buffer = buffer,
              .waits = {}};
    if (buffer.in_slot) {
      if (const auto it = slot_released_.find({turn.chunk, slot}); it != slot_released_.end()) {
        step.waits.push_back(it->second);
      }
    } else if (const auto it = last_reader_.find({t, 0}); it != last_reader_.end()) {
      step.waits.push_back(it->second);
    }
    return Append(std::move(step));
  }

  void Send(std::int32_t t, const Turn& turn, std::int32_t after) {
    last_send_[t] = Append({.kind = StepKind::kSend,
                            .transfer = t,
                            .microbatch = turn.microbatch,
                            .slot = -1,
                            .chunk = turn.chunk,
                            .stream = turn.pass == Pass::kBackward ? kSendPrevious : kSendNext,
                            .buffer = in_.buffers->send.at(t),
                            .waits = {after}});
  }

  const ProgramInputs& in_;
  Program program_;
  absl::flat_hash_map<std::int32_t, std::vector<std::int32_t>> slots_;  // microbatch in each slot, −1: free
  absl::flat_hash_map<std::int32_t, std::int32_t> last_send_;
  absl::flat_hash_map<std::pair<std::int32_t, std::int32_t>, std::int32_t> last_reader_;
  absl::flat_hash_map<std::pair<std::int32_t, std::int32_t>, std::int32_t> slot_released_;
};

}  // namespace

Program UnrollProgram(const ProgramInputs& inputs, const std::vector<Turn>& turns) {
  return Unroller(inputs).Run(turns);
}

}  // namespace engine::plan
