// The checkpoint with which a run ends, at its last iteration or where a signal has stopped it. No next one stands for it: where it cannot be written, or not be
// put into the bucket, and that may pass, it is tried again for a while (checkpoint.final_patience), with the state where it is.
#pragma once

#include "engine/base/status.h"
#include "engine/train/position.h"
#include "engine/train/run_context.h"
#include "engine/train/save.h"
#include "engine/train/stop_signals.h"

namespace engine::train {

struct EndOfTraining {
  bool stopped = false;          // by a signal
  Clock::time_point last_began;  // the last iteration; a signal came later
};

// Saves the state before the run ends, where the newest checkpoint is of an earlier iteration. None is under way afterwards, and Saver::Last()
// says whether the run has its checkpoint. All ranks call it. Error: what no other try cures, or the run has ended.
absl::Status SaveLast(const RunContext& run, const StopSignals& stop, const Position& position,
                      const EndOfTraining& end, Saver& saver);

}  // namespace engine::train
