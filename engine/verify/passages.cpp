#include "engine/verify/passages.h"

#include <algorithm>

namespace engine::verify {

Passages::Passages(const ProgramSteps& steps) : steps_(steps) {
  const plan::ProgramSpec& spec = steps.spec();
  for (const plan::Chunk& chunk : steps.stage().chunks) {
    Chunk& state = chunks_[chunk.index];
    state.holder.assign(static_cast<size_t>(chunk.slots), -1);
    state.released.assign(static_cast<size_t>(chunk.slots), -1);
    state.done.assign(static_cast<size_t>(spec.microbatches), 0);
    if (steps.plan().FactsAt(spec.form).trains) state.passes = chunk.passes[spec.form].weights >= 0 ? 3 : 2;
  }
}

absl::Status Passages::Pass(size_t i, const plan::Step& of, plan::Pass pass) {
  RETURN_IF_ERROR(InOrder(i, of, pass));
  return steps_.plan().FactsAt(steps_.spec().form).trains ? HoldsSlot(i, of, pass) : absl::OkStatus();
}

// Order of the passes of a microbatch, and of those that sum gradients.
absl::Status Passages::InOrder(size_t i, const plan::Step& of, plan::Pass pass) {
  Chunk& state = chunks_.at(of.chunk);
  int& done = state.done[static_cast<size_t>(of.microbatch)];
  const int before = static_cast<int>(pass);
  if (done != before) {
    return Internal("{}: microbatch {} {} chunk {}", steps_.Name(i), of.microbatch,
                    done > before ? "has already passed"
                    : done == 0   ? "has not passed forward through"
                                  : "has not passed backward through",
                    of.chunk);
  }
  ++done;
  const bool sums = pass != plan::Pass::kForward;
  if (sums && of.microbatch != 0 && state.done[0] <= before) {
    return Internal("{} adds to gradients before microbatch 0 has overwritten those of the iteration before",
                    steps_.Name(i));
  }
  const bool last = sums && of.microbatch + 1 == steps_.spec().microbatches;
  if (last && std::any_of(state.done.begin(), state.done.end(), [&](int n) { return n <= before; })) {
    return Internal("{} reduces the gradients of chunk {}, to which other microbatches have still to add",
                    steps_.Name(i), of.chunk);
  }
  return absl::OkStatus();
}

// Who holds the slot. The pass has been counted.
absl::Status Passages::HoldsSlot(size_t i, const plan::Step& of, plan::Pass pass) {
  Chunk& state = chunks_.at(of.chunk);
  if (of.slot < 0 || static_cast<size_t>(of.slot) >= state.holder.size()) {
    return Internal("{} uses slot {} of {}", steps_.Name(i), of.slot, state.holder.size());
  }
  const bool takes = pass == plan::Pass::kForward;
  std::int32_t& holder = state.holder[static_cast<size_t>(of.slot)];
  if (takes && holder >= 0) {
    return Internal("{} takes slot {} of chunk {}, which microbatch {} still holds", steps_.Name(i), of.slot,
                    of.chunk, holder);
  }
  if (!takes && holder != of.microbatch) {
    return Internal("{} reads slot {} of chunk {}, which {}", steps_.Name(i), of.slot, of.chunk,
                    holder < 0 ? "is free" : fmt::format("holds microbatch {}", holder));
  }
  const bool gives_back = state.done[static_cast<size_t>(of.microbatch)] == state.passes;
  holder = gives_back ? -1 : of.microbatch;
  if (gives_back) state.released[static_cast<size_t>(of.slot)] = static_cast<std::int32_t>(i);
  return absl::OkStatus();
}

absl::Status Passages::ReceiveIntoSlot(size_t i) const {
  const plan::Step& step = steps_.program()[i];
  const std::int32_t chunk_index = steps_.TransferAt(step.transfer).to_chunk;
  const auto chunk = chunks_.find(chunk_index);
  const std::int32_t slot = steps_.SlotOf(step);
  if (chunk == chunks_.end() || slot < 0 || step.slot % steps_.Halves() != 0 ||
      static_cast<size_t>(slot) >= chunk->second.holder.size()) {
    return Internal("{} has no slot {}", steps_.Name(i), step.slot);
  }
  const Chunk& state = chunk->second;
  const std::int32_t holder = state.holder[static_cast<size_t>(slot)];
  const std::int32_t released = state.released[static_cast<size_t>(slot)];
  // What comes for the backward pass finds the slot taken by the forward pass.
  const std::int32_t wanted = steps_.PassOf(step.transfer) == plan::Pass::kForward ? -1 : step.microbatch;
  if (holder < 0 && wanted >= 0) {
    return Internal("{} writes into slot {} of chunk {}, which is free", steps_.Name(i), slot, chunk_index);
  }
  if (holder != wanted) {
    return Internal("{} writes into slot {} of chunk {}, which microbatch {} still holds", steps_.Name(i),
                    slot, chunk_index, holder);
  }
  if (released >= 0 && !steps_.Before(released, i)) {
    return Internal("{} writes into the slot that {} reads, and does not wait for it", steps_.Name(i),
                    steps_.Name(released));
  }
  return absl::OkStatus();
}

absl::Status Passages::Finish() const {
  for (const auto& [chunk, state] : chunks_) {
    for (size_t m = 0; m < state.done.size(); ++m) {
      if (state.done[m] == state.passes) continue;
      constexpr const char* kPassed[] = {"never", "forward only", "without making the gradients of weights"};
      return Internal("stage {} {}: microbatch {} passes chunk {} {}", steps_.id().stage,
                      steps_.plan().ProgramName(steps_.id().program), m, chunk, kPassed[state.done[m]]);
    }
  }
  return absl::OkStatus();
}

}  // namespace engine::verify
