// Whether a run whose ranks were lost begins again, and when.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/launch/host_table.h"

namespace engine::cli {

// Whether another try may go well after a run that ended with this code (device.h, or 128 + a signal). Signals by which a person, or a
// scheduler, ended it at once mean what they say.
bool MayGoWell(int code);

struct RestartOptions {
  std::string checkpoints;  // their folder
  std::int64_t most = 0;    // restarts in all
};

// A run that makes a checkpoint between two failures, on disk or in memory, and not the same one as before the last failure, gets on, and
// begins again at once. While it does not, there are pauses, each twice as long as the one before, up to a minute; after the second
// failure it begins from the disk, as the state in memory may itself have led to the failures, and the third one is the last.
class Restarts {
 public:
  static constexpr int kMostInVain = 3;  // failures without a checkpoint between them

  explicit Restarts(const RestartOptions& options);

  // After so many attempts, of which the last has ended so on the hosts that are left.
  launch::Sequel After(std::int64_t attempts, const std::vector<launch::HostEnd>& ends);
  // The next attempt begins, from the newest checkpoint on disk or from the newest of all.
  void Begin(bool from_disk) { began_ = from_disk ? NewestOnDisk() : newest_; }

 private:
  std::int64_t NewestOnDisk() const;  // iteration of the newest checkpoint; -1: there is none

  const RestartOptions options_;
  std::int64_t began_ = -1;      // where the last attempt began
  std::int64_t newest_ = -1;     // checkpoint when it ended, on disk or in memory
  std::int64_t failed_at_ = -2;  // that, of the last failure; -2: none has been
  int in_vain_ = 0;
};

}  // namespace engine::cli
