#include "engine/verify/scale_update.h"

#include "engine/verify/text.h"

namespace engine::verify {

// The axes of a stage's ranks: each of them holds parts or copies of the tensors that the states are of.
plan::AxisSet ScaleUpdate::StageRanks() const {
  plan::AxisSet axes;
  for (graph::Axis axis : graph::kAxes) axes = axes | plan::AxisSet::Of(axis);
  return plan_.mesh.Active(axes);
}

absl::Status ScaleUpdate::Reduce(const plan::Instruction& instruction) {
  if (instruction.collective() != plan::Collective::kAllReduce ||
      instruction.reduction() != graph::Reduction::kMax || !(instruction.group() == StageRanks())) {
    return Internal("of the states the largest over {} are taken, not {}{} over {}", StageRanks().ToString(),
                    instruction.kernel(), instruction.reduction() == graph::Reduction::kMax ? " (max)" : "",
                    plan_.mesh.NameOf(instruction.group()));
  }
  if (updated_) return Internal("the states are already updated");
  if (reduced_) return Internal("the largest of the states are taken twice");
  reduced_ = true;
  return absl::OkStatus();
}

absl::Status ScaleUpdate::Update(const plan::Instruction& instruction) {
  if (instruction.inputs.size() != 1 || !SamePlace(instruction.inputs[0], stage_.scales) ||
      instruction.outputs.size() != 1 || !SamePlace(instruction.outputs[0], stage_.scales)) {
    return Internal("is not of all states, in place");
  }
  if (updated_) return Internal("the states are updated twice");
  if (!StageRanks().empty() && !reduced_)
    return Internal("the states are updated by the rank's own largest values, not by those over {}",
                    StageRanks().ToString());
  updated_ = true;
  return absl::OkStatus();
}

absl::Status ScaleUpdate::Finish() const {
  if (stage_.scales.elements > 0 && !updated_)
    return Internal("stage {}: the states are never updated", index_);
  return absl::OkStatus();
}

}  // namespace engine::verify
