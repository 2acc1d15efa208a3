// A run that goes back to a checkpoint of its own, in the ranks that there are ([guard], docs/bad-numbers.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/checkpoint/store.h"
#include "engine/train/guard.h"
#include "engine/train/position.h"
#include "engine/train/report.h"
#include "engine/train/rerun.h"
#include "engine/train/run_context.h"
#include "engine/train/start.h"

namespace engine::train {

// Where the run was when it met an iteration for which it goes back.
struct Departure {
  BadIteration bad;
  checkpoint::GuardState guard;
};

// Where it goes on, and what is told of that.
struct Return {
  Position position;
  RewindReport report;
  std::string text;
};

// The returns of one run. All processes of a run go back alike, as all judge the same numbers.
class Rewinds {
 public:
  // All live as long as this.
  Rewinds(RunContext& run, checkpoint::Retention& retention);

  // What compares iterations that are trained twice; null without guard.rerun.
  Rerun* rerun() { return rerun_ ? &*rerun_ : nullptr; }

  // Fills the ranks from the checkpoint that the guard names, or, where the run has none yet and was not `resumed`, with the first weights,
  // those of `start` among them. With guard.rerun it first goes back to train the same once more. No iteration is under way, and no checkpoint. Error: that of the bad
  // iteration, where the run does not go back for it or has no checkpoint to go back to.
  absl::StatusOr<Return> GoBack(const Departure& left, bool resumed, const std::optional<StartPoint>& start);

 private:
  // Error: the run ends for the bad iteration.
  absl::Status MayRewind(const Departure& left) const;
  // The state of the newest checkpoint of iteration `latest` or before; of a multiple of `every`, where that is above 0.
  absl::StatusOr<Position> LoadBefore(std::int64_t latest, std::int64_t every, const BadIteration& bad,
                                      bool resumed, const std::optional<StartPoint>& start);

  RunContext& run_;
  checkpoint::Retention& retention_;
  std::optional<Rerun> rerun_;
  absl::Status
      copies_;  // whether ranks' copies of weights were the same before an iteration was trained once more
  std::int64_t returns_ = 0;  // so far
};

}  // namespace engine::train
