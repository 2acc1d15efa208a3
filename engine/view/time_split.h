// What the time of a run went to, from its records: goodput, and the lost time by reason.
//
// A record is written when its event is over, so the time between two records is that of the second one's event and of what
// stood between: work that has no record of its own, or an interruption, in which the run was down, started again, and ran
// iterations again whose records a resume has cut off.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace engine::view {

struct Interruption {
  std::int64_t after_iteration = 0;
  double began_unix_s = 0;  // when the record before it was written
  double seconds = 0;
  bool resumed = false;  // the record after it says that the run was resumed
};

class TimeSplit {
 public:
  // The next record is the first since the run was resumed, so that the gap before it is an interruption, however short.
  void Resume() { resumed_ = true; }
  // Records in the order of the file. `ended`: when a record was written, in seconds since 1970; 0: the record does not say.
  // Seconds are the events' own times.
  void AddIteration(std::int64_t iteration, double ended_unix_s, double seconds, double data_wait_s,
                    bool updated);
  void AddEvaluation(double ended_unix_s, double seconds);
  // `stall_s`: how long training stood still for checkpoints since the record of the one before, which may have been between
  // other records.
  void AddCheckpoint(double ended_unix_s, double stall_s);

  // Seconds from the beginning of the first iteration to the last record; all others add up to it.
  double wall_s() const;
  double training_s() const { return training_s_; }    // iterations that were updates, without waits for data
  double skipped_s() const { return skipped_s_; }      // iterations without an update
  double data_wait_s() const { return data_wait_s_; }  // iterations that waited for their samples
  double evaluation_s() const { return evaluation_s_; }
  double saving_s() const { return saving_s_; }
  double interrupted_s() const { return interrupted_s_; }
  double other_s() const { return std::max(other_s_, 0.0); }
  // The share of wall_s that went to training; 0 where nothing is known.
  double goodput() const;

  std::int64_t interruptions() const { return interruption_count_; }
  // The longest of them, at most kMostListed, in order.
  const std::vector<Interruption>& listed() const { return listed_; }
  bool has_times() const {
    return last_ended_unix_s_ > 0;
  }  // of records; without them interruptions are not seen

  static constexpr std::size_t kMostListed = 64;

 private:
  // Accounts for what stands between the record before and an event of so many seconds.
  void TakeGap(double ended_unix_s, double seconds);
  void Interrupt(double seconds);
  // The longest gap that is no interruption.
  double LongestGap() const;

  double training_s_ = 0, skipped_s_ = 0, data_wait_s_ = 0, evaluation_s_ = 0, saving_s_ = 0;
  double interrupted_s_ = 0, other_s_ = 0;
  double last_ended_unix_s_ = 0, last_checkpoint_unix_s_ = 0;
  std::int64_t last_iteration_ = 0;
  double typical_s_ = 0;  // of an iteration: a running mean
  bool resumed_ = false;  // before the next record
  std::int64_t interruption_count_ = 0;
  std::vector<Interruption> listed_;
};

}  // namespace engine::view
