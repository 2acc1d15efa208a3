// Part of VerifySteps: the microbatches' ways through the chunks of a stage.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <cstdint>
#include <vector>

#include "engine/base/status.h"
#include "engine/verify/program_steps.h"

namespace engine::verify {

// Shows of one program that a microbatch makes the passes through each chunk once each and in order, that
// gradients are summed from microbatch 0 on and reduced with the last, and that in training the microbatch
// alone holds its slot from its first pass to its last. The program's steps are shown to it in order.
class Passages {
 public:
  explicit Passages(const ProgramSteps& steps);

  // Step i makes a pass. `of`: the step as if it ran this one microbatch of its halves alone.
  absl::Status Pass(std::size_t i, const plan::Step& of, plan::Pass pass);
  // Step i receives into a slot, which is free before the forward pass and the microbatch's own after it.
  absl::Status ReceiveIntoSlot(std::size_t i) const;
  // At the end of the program: every microbatch has made all passes.
  absl::Status Finish() const;

 private:
  struct Chunk {
    std::vector<std::int32_t> holder;    // microbatch in each slot; −1: free
    std::vector<std::int32_t> released;  // step of the pass that last gave the slot back
    std::vector<int> done;               // passes, by microbatch
    int passes = 1;                      // that a microbatch makes
  };

  absl::Status InOrder(std::size_t i, const plan::Step& of, plan::Pass pass);
  absl::Status HoldsSlot(std::size_t i, const plan::Step& of, plan::Pass pass);

  const ProgramSteps& steps_;
  absl::flat_hash_map<std::int32_t, Chunk> chunks_;
};

}  // namespace engine::verify
