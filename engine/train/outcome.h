// How a run ended, for whoever started it: DIR/outcome.json, the last file that a run writes. Its keys: docs/launch.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "engine/base/status.h"

namespace engine::train {

struct Outcome {
  enum class Kind { kFinished, kStopped, kFailed } kind = Kind::kFinished;  // stopped: by a signal, and saved
  std::optional<std::int64_t> iteration =
      {};                       // the last that was finished; of a run that was killed, not known
  std::int64_t iterations = 0;  // of the recipe
  std::string reason = {};      // of a failure
  bool retryable = false;       // the same may go well another time
};

// What a run that failed has found out about a bad number ([guard], docs/bad-numbers.md).
enum class Verdict {
  kNone,
  kMachine,  // a machine computes or stores something wrong: the same work gave other bits, or copies of weights differ
  kTrue,  // the same work gives it again, to the bit: the model or the data is at fault
};
absl::Status WithVerdict(absl::Status failure, Verdict verdict);
Verdict VerdictOf(const absl::Status& failure);

// Whether a failure is one of the machines: a device, its libraries, another rank. What recipe, data or training are to blame for comes
// again.
bool IsRetryable(const absl::Status& failure);

absl::Status WriteOutcome(const std::string& out, const Outcome& outcome);

// Warns that the outcome could not be written.
void TellUnwritten(const absl::Status& error);

// Writes how the run under way ended, once: by the thread that trains, or before it by the one that a second signal wakes
// (train/stop_signals.h).
class OutcomeWriter {
 public:
  // From now on the folder is this run's; before, nothing is written.
  void Begin(const std::string& out, std::int64_t iterations);
  void Reached(std::int64_t iteration) { iteration_ = iteration; }  // the last that was finished
  // Adds the iterations. OK where another thread has written before.
  absl::Status Write(Outcome outcome);
  // After it, the process is to end.
  void WriteStoppedAtOnce();

 private:
  std::mutex mutex_;  // of what follows, and of the file
  std::string out_;   // empty: not begun
  std::int64_t iterations_ = 0;
  bool written_ = false;
  std::atomic<std::int64_t> iteration_ = 0;
};

// Whether the last run in the folder has finished with so many iterations or more, and their checkpoint is there.
bool HasFinished(const std::string& out, std::int64_t iterations);
// A run that goes on has no outcome. Whether there was one.
absl::StatusOr<bool> RemoveOutcome(const std::string& out);

// After a run that failed: what it wrote, with `retryable`, which its ranks' exit codes tell better than rank 0 knew; where rank 0 could
// write nothing, `verdict` as the reason. Nothing where the folder holds no run, or another run has it by now.
void FinishOutcome(const std::string& out, std::int64_t iterations, const std::string& verdict,
                   bool retryable);

}  // namespace engine::train
