// A run's state to and from its checkpoints.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/checkpoint/store.h"
#include "engine/train/position.h"
#include "engine/train/resume.h"
#include "engine/train/run_context.h"
#include "engine/train/start.h"

namespace engine::train {

// Whether the recipe wants a checkpoint after this iteration, from 1.
bool CheckpointDue(const recipe::Recipe& recipe, std::int64_t iteration);

// Fills the ranks from the checkpoint that the run goes on from; where there is none with the first weights, those of
// `start` among them. Returns where that is.
absl::StatusOr<Position> LoadState(const RunContext& run, const std::optional<ResumePoint>& resume,
                                   const std::optional<StartPoint>& start);

// Writes a checkpoint, reports it, and deletes those that `retention` does not keep.
absl::Status Save(const RunContext& run, const Position& position, checkpoint::Retention& retention);

}  // namespace engine::train
