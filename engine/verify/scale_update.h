// The update of a stage's states of scales, beside that of its parameters.
#pragma once

#include <cstdint>

#include "engine/base/status.h"
#include "engine/plan/plan.h"

namespace engine::verify {

// Shows that all states of scales are updated once, in place, by the largest values over the ranks of the stage. The
// update's instructions are shown to it in order.
class ScaleUpdate {
 public:
  ScaleUpdate(const plan::Plan& plan, std::int32_t stage)
      : plan_(plan), index_(stage), stage_(plan.stages[static_cast<std::size_t>(stage)]) {}

  // The instruction takes the largest values over ranks.
  absl::Status Reduce(const plan::Instruction& instruction);
  // It updates the states.
  absl::Status Update(const plan::Instruction& instruction);
  // The update has come to its end.
  absl::Status Finish() const;

 private:
  plan::AxisSet StageRanks() const;

  const plan::Plan& plan_;
  const std::int32_t index_;
  const plan::StagePlan& stage_;
  bool reduced_ = false;
  bool updated_ = false;
};

}  // namespace engine::verify
