#include "engine/verify/border_buffers.h"

namespace engine::verify {

BorderBuffers::BorderBuffers(const ProgramSteps& steps) : steps_(steps) {
  for (const plan::Step& step : steps.program()) {
    if (step.kind == plan::StepKind::kRun) continue;
    const plan::Transfer& transfer = steps.TransferAt(step.transfer);
    if (step.kind == plan::StepKind::kSend) {
      if (out_.in_slot.try_emplace(step.transfer, step.buffer.in_slot).second)
        out_.transfers[transfer.from_chunk].push_back(step.transfer);
    } else if (in_.in_slot.try_emplace(step.transfer, step.buffer.in_slot).second) {
      in_.transfers[transfer.to_chunk].push_back(step.transfer);
    }
  }
}

absl::Status BorderBuffers::Pass(size_t i, const plan::Step& of, plan::Pass pass) {
  RETURN_IF_ERROR(SentFromSlot(i, of, pass));
  if (pass == plan::Pass::kWeights) return absl::OkStatus();  // reads its slot alone
  RETURN_IF_ERROR(Reads(i, of, pass));
  return Writes(i, of, pass);
}

// A later pass may overwrite the slot's values, when those that are sent from there have been.
absl::Status BorderBuffers::SentFromSlot(size_t i, const plan::Step& of, plan::Pass pass) {
  for (std::int32_t t : out_.transfers[of.chunk]) {
    if (!out_.in_slot.at(t) || steps_.PassOf(t) >= pass) continue;
    const Sent& state = out_.Of(steps_, t, of);
    if (state.microbatch == of.microbatch && state.sent >= 0 && steps_.Before(state.sent, i)) continue;
    return Internal("{} may overwrite {} in its slot before it is sent", steps_.Name(i), steps_.ValueName(t));
  }
  return absl::OkStatus();
}

absl::Status BorderBuffers::Reads(size_t i, const plan::Step& of, plan::Pass pass) {
  for (std::int32_t t : in_.transfers[of.chunk]) {
    // A backward pass also reads what its forward pass received into the slot.
    if (steps_.PassOf(t) != pass && !(in_.in_slot.at(t) && steps_.PassOf(t) < pass)) continue;
    Received& state = in_.Of(steps_, t, of);
    if (state.received < 0 || state.microbatch != of.microbatch) {
      return Internal(
          "{} reads {}, but its buffer holds {}", steps_.Name(i), steps_.ValueName(t),
          state.received < 0 ? "nothing yet" : fmt::format("that of microbatch {}", state.microbatch));
    }
    if (!steps_.Before(state.received, i)) {
      return Internal("{} does not wait for {}, which it reads", steps_.Name(i), steps_.Name(state.received));
    }
    state.reader = static_cast<std::int32_t>(i);
  }
  return absl::OkStatus();
}

absl::Status BorderBuffers::Writes(size_t i, const plan::Step& of, plan::Pass pass) {
  for (std::int32_t t : out_.transfers[of.chunk]) {
    if (steps_.PassOf(t) != pass) continue;
    Sent& state = out_.Of(steps_, t, of);
    if (state.writer >= 0 && state.sent < 0) {
      return Internal("{} overwrites {} of microbatch {} before it is sent", steps_.Name(i),
                      steps_.ValueName(t), state.microbatch);
    }
    if (state.sent >= 0 && !steps_.Before(state.sent, i)) {
      return Internal("{} overwrites the buffer that {} sends, and does not wait for it", steps_.Name(i),
                      steps_.Name(state.sent));
    }
    state = {.microbatch = of.microbatch, .writer = static_cast<std::int32_t>(i), .sent = -1};
  }
  return absl::OkStatus();
}

absl::Status BorderBuffers::Send(size_t i) {
  const plan::Step& step = steps_.program()[i];
  Sent& state = out_.Of(steps_, step.transfer, step);
  if (state.writer < 0 || state.microbatch != step.microbatch) {
    return Internal("{}: its buffer holds {}", steps_.Name(i),
                    state.writer < 0 ? "nothing yet" : fmt::format("microbatch {}", state.microbatch));
  }
  if (state.sent >= 0) return Internal("{} repeats {}", steps_.Name(i), steps_.Name(state.sent));
  if (!steps_.Before(state.writer, i)) {
    return Internal("{} does not wait for {}, which writes what it sends", steps_.Name(i),
                    steps_.Name(state.writer));
  }
  state.sent = static_cast<std::int32_t>(i);
  return absl::OkStatus();
}

absl::Status BorderBuffers::Receive(size_t i) {
  const plan::Step& step = steps_.program()[i];
  const std::int32_t place = step.buffer.in_slot ? steps_.SlotOf(step) : steps_.HalfOf(step);
  Received& state = in_.buffers[{step.transfer, place}];
  if (state.received >= 0 && state.reader < 0) {
    return Internal("{} overwrites microbatch {}, which nothing has read", steps_.Name(i), state.microbatch);
  }
  if (state.received >= 0 && !steps_.Before(state.reader, i)) {
    return Internal("{} overwrites what {} reads, and does not wait for it", steps_.Name(i),
                    steps_.Name(state.reader));
  }
  RETURN_IF_ERROR(Relayed(i));
  state = {.microbatch = step.microbatch, .received = static_cast<std::int32_t>(i), .reader = -1};
  return absl::OkStatus();
}

// What the chunk relays of this transfer's value stays where it was received until it has been sent.
absl::Status BorderBuffers::Relayed(size_t i) {
  const plan::Step& step = steps_.program()[i];
  const plan::Transfer& arrives = steps_.TransferAt(step.transfer);
  for (std::int32_t t : out_.transfers[arrives.to_chunk]) {
    if (steps_.TransferAt(t).value != arrives.value) continue;
    const Sent& state = out_.Of(steps_, t, step);
    if (state.writer < 0 || (state.sent >= 0 && steps_.Before(state.sent, i))) continue;
    return Internal(
        "{} overwrites what {}, and does not wait for it", steps_.Name(i),
        state.sent < 0 ? "is still to be relayed" : fmt::format("{} relays", steps_.Name(state.sent)));
  }
  return absl::OkStatus();
}

absl::Status BorderBuffers::Finish() const {
  for (const auto& [t, state] : out_.buffers) {
    if (state.writer >= 0 && state.sent < 0) {
      return Internal("{} makes {}, which is never sent", steps_.Name(state.writer),
                      steps_.ValueName(t.first));
    }
  }
  return absl::OkStatus();
}

}  // namespace engine::verify
