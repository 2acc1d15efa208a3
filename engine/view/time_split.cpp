#include "engine/view/time_split.h"

#include <algorithm>

namespace engine::view {
namespace {

// What is longer than both is an interruption, also where no record says so, as in files from before one did: few processes
// are up again sooner, and what has no record of its own (putting out records, deleting checkpoints) takes less.
constexpr double kShortest_s = 5;
constexpr double kIterations = 3;

constexpr double kMeanWeight = 0.05;  // of the newest iteration in the running mean

}  // namespace

void TimeSplit::AddIteration(std::int64_t iteration, double ended_unix_s, double seconds, double data_wait_s,
                             bool updated) {
  TakeGap(ended_unix_s, seconds);
  const double waited = std::clamp(data_wait_s, 0.0, seconds);
  data_wait_s_ += waited;
  (updated ? training_s_ : skipped_s_) += seconds - waited;
  typical_s_ = typical_s_ == 0 ? seconds : (1 - kMeanWeight) * typical_s_ + kMeanWeight * seconds;
  last_iteration_ = iteration;
}

void TimeSplit::AddEvaluation(double ended_unix_s, double seconds) {
  TakeGap(ended_unix_s, seconds);
  evaluation_s_ += seconds;
}

void TimeSplit::AddCheckpoint(double ended_unix_s, double stall_s) {
  const bool timed = ended_unix_s > 0 && last_ended_unix_s_ > 0;
  const double now_s = timed ? std::clamp(ended_unix_s - last_ended_unix_s_, 0.0, stall_s) : stall_s;
  TakeGap(ended_unix_s, now_s);
  saving_s_ += now_s;
  const double before_s = stall_s - now_s;
  // A long stall looked like an interruption until this record told of it.
  const bool explains = !listed_.empty() && !listed_.back().resumed &&
                        listed_.back().began_unix_s >= last_checkpoint_unix_s_ &&
                        listed_.back().seconds - before_s <= LongestGap();
  if (before_s > 0 && explains) {
    interrupted_s_ -= listed_.back().seconds;
    other_s_ += listed_.back().seconds;
    --interruption_count_;
    listed_.pop_back();
  }
  const double moved_s = std::min(before_s, other_s());
  other_s_ -= moved_s;
  saving_s_ += moved_s;
  last_checkpoint_unix_s_ = ended_unix_s;
}

double TimeSplit::wall_s() const {
  return training_s_ + skipped_s_ + data_wait_s_ + evaluation_s_ + saving_s_ + interrupted_s_ + other_s();
}

double TimeSplit::goodput() const {
  const double wall = wall_s();
  return wall > 0 ? training_s_ / wall : 0;
}

void TimeSplit::TakeGap(double ended_unix_s, double seconds) {
  if (ended_unix_s <= 0) return;
  const double gap_s = last_ended_unix_s_ > 0 ? ended_unix_s - last_ended_unix_s_ - seconds : 0;
  if (gap_s > LongestGap() || (resumed_ && gap_s > 0)) {
    Interrupt(gap_s);
  } else {
    other_s_ += gap_s;  // negative where a record was written late, and the one after it was not
  }
  resumed_ = false;
  last_ended_unix_s_ = std::max(ended_unix_s, last_ended_unix_s_);
}

double TimeSplit::LongestGap() const { return std::max(kShortest_s, kIterations * typical_s_); }

void TimeSplit::Interrupt(double seconds) {
  interrupted_s_ += seconds;
  ++interruption_count_;
  listed_.push_back({.after_iteration = last_iteration_,
                     .began_unix_s = last_ended_unix_s_,
                     .seconds = seconds,
                     .resumed = resumed_});
  if (listed_.size() <= kMostListed) return;
  const auto shorter = [](const Interruption& a, const Interruption& b) { return a.seconds < b.seconds; };
  listed_.erase(std::min_element(listed_.begin(), listed_.end(), shorter));
}

}  // namespace engine::view
