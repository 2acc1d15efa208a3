// The iterations of a run, started one after another.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "engine/train/guard.h"
#include "engine/train/iteration_log.h"
#include "engine/train/position.h"
#include "engine/train/profile.h"
#include "engine/train/rerun.h"
#include "engine/train/run_context.h"
#include "engine/train/stop_signals.h"

namespace engine::train {

// Starts iterations, waits for their results and moves the run's position on. On a device that runs beside the
// host, the results are waited for when the next one has been started, so that the device never waits for the
// host.
class Iterations {
 public:
  // Goes on from `position`. `rerun`: what hears of each iteration, or null. All but the position live as long as this.
  Iterations(const RunContext& run, StopSignals& stop, const Position& position, Rerun* rerun = nullptr);

  const Position& position() const { return position_; }
  // The iteration for which the run goes back to a checkpoint; none is under way then, and no other is begun here.
  const std::optional<BadIteration>& bad() const { return bad_; }
  // Iterations in a row up to the last one that is over whose losses are not finite, though the run goes on (guard.on_nonfinite): their
  // updates were skipped, but the weights that made them may be spoilt.
  std::int64_t doubtful() const { return doubtful_; }

  // Starts the next iteration, and finishes those that nothing is gained by leaving under way: all of them where
  // an evaluation or a checkpoint is due, be it in memory. An iteration that is left out (guard.skip_iterations, or after a
  // rewind) is counted, its samples are consumed, and nothing is trained. Error: a rank's, or numbers by which the run ends (EndOf).
  absl::Status TrainOnce();
  // Waits for all started iterations, and reports them.
  absl::Status FinishAll();
  // Reports what is known of finished iterations (IterationLog::Flush).
  absl::Status Flush() { return log_.Flush(); }
  // Writes what the profiled iterations took into the run's folder; nothing where none was profiled.
  absl::Status WriteProfiles() const;

 private:
  struct Started {
    std::int64_t iteration = 0;         // from 1
    std::int64_t consumed_samples = 0;  // after it
    std::int64_t global_batch = 0;      // its own
  };

  // Whether nothing is trained in this iteration.
  bool IsLeftOut(std::int64_t iteration) const;
  void LeaveOut();
  // Waits for iterations whose results nobody wants, as the run goes back before them, or ends.
  absl::Status Abandon();
  executor::Feed FeedOf(std::int64_t first_sample) const;
  // Samples of the iteration that begins when so many have been consumed, and its program.
  std::int64_t BatchAt(std::int64_t consumed) const;
  std::int32_t ProgramAt(std::int64_t consumed) const;
  // Rates for the update of the next iteration. The host does not know yet whether the one under way is
  // skipped, which the schedule then does not count (as in Megatron-LM).
  executor::LearningRates Rates() const;
  // A few iterations of warm-up, then so many as were asked for.
  bool ProfilesNow() const;
  // Waits for the oldest started iteration and reports it.
  absl::Status Finish();
  IterationReport ReportOf(const Started& started, const executor::IterationResult& result) const;

  const RunContext& run_;
  StopSignals& stop_;
  Rerun* rerun_;
  Position position_;
  std::int64_t first_iteration_ = 0;              // of this run
  std::vector<recipe::IterationRange> left_out_;  // by the recipe and by the guard
  std::int64_t left_out_count_ = 0;               // iterations done that were
  std::int64_t told_left_out_ = 0;                // up to that one the log has said which are
  std::optional<BadIteration> bad_;
  std::int64_t doubtful_ = 0;
  IterationLog log_;
  std::deque<Started> started_;                           // and not yet waited for
  std::map<std::int64_t, std::vector<Timings>> profile_;  // by rank of this process
};

}  // namespace engine::train
