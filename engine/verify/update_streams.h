// What runs beside what around a stage's update.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/base/status.h"
#include "engine/plan/plan.h"

namespace engine::verify {

// Shows that only exchanges of buckets run beside the update's other instructions, never two collectives at once,
// and that what arrives meanwhile has bytes of its own. The update's instructions are shown to it in order, and
// outlive it.
class UpdateStreams {
 public:
  explicit UpdateStreams(const plan::StagePlan& stage) : stage_(stage) {}

  // `reducing`: the reduction of some bucket is under way.
  absl::Status Check(const plan::Instruction& instruction, bool reducing);

 private:
  absl::Status OnItsStream(const plan::Instruction& instruction, bool reducing);
  absl::Status Scribbles(const plan::Instruction& instruction);

  const plan::StagePlan& stage_;
  bool gathering_ = false;  // parameters, behind the update
  std::vector<std::pair<const plan::BufferRef*, bool>>
      scratches_;  // and whether pushed gradients arrive there
};

// What is pushed behind a pass arrives behind the transients of passes, where nothing of a microbatch lies.
absl::Status ArrivesBehindPasses(const plan::StagePlan& stage, const plan::Instruction& instruction);

}  // namespace engine::verify
