// Part of VerifySteps: the buffers at the borders of chunks, which passes write and sends read, and which
// receives write and passes read.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/base/status.h"
#include "engine/verify/program_steps.h"

namespace engine::verify {

// Shows of one program that what is sent is what the pass of its microbatch made, that what a pass reads is
// what was received for its microbatch, and that no buffer is overwritten before it has been sent, relayed or
// read; each by the stage's own streams and waits. The program's steps are shown to it in order.
class BorderBuffers {
 public:
  explicit BorderBuffers(const ProgramSteps& steps);

  // Step i makes a pass. `of`: the step as if it ran this one microbatch of its halves alone.
  absl::Status Pass(std::size_t i, const plan::Step& of, plan::Pass pass);
  absl::Status Send(std::size_t i);
  absl::Status Receive(std::size_t i);
  // At the end of the program: all that was made to be sent has been.
  absl::Status Finish() const;

 private:
  struct Sent {
    std::int32_t microbatch = -1;  // in the buffer
    std::int32_t writer = -1;      // step
    std::int32_t sent = -1;        // step; −1: still to be sent
  };
  struct Received {
    std::int32_t microbatch = -1;
    std::int32_t received = -1;  // step
    std::int32_t reader = -1;    // last step that read it; −1: none yet
  };
  // Transfers of the program in one direction, and the buffers that they have.
  template <typename Buffer>
  struct Border {
    absl::flat_hash_map<std::int32_t, bool> in_slot;                         // by transfer
    absl::flat_hash_map<std::int32_t, std::vector<std::int32_t>> transfers;  // by chunk
    absl::flat_hash_map<std::pair<std::int32_t, std::int32_t>, Buffer>
        buffers;  // by transfer and slot, or half

    Buffer& Of(const ProgramSteps& steps, std::int32_t transfer, const plan::Step& step) {
      return buffers[{transfer, in_slot.at(transfer) ? steps.SlotOf(step) : steps.HalfOf(step)}];
    }
  };

  absl::Status SentFromSlot(std::size_t i, const plan::Step& of, plan::Pass pass);
  absl::Status Reads(std::size_t i, const plan::Step& of, plan::Pass pass);
  absl::Status Writes(std::size_t i, const plan::Step& of, plan::Pass pass);
  absl::Status Relayed(std::size_t i);

  const ProgramSteps& steps_;
  Border<Sent> out_;
  Border<Received> in_;
};

}  // namespace engine::verify
