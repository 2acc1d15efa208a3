// Whether a run whose ranks were lost begins again, and when.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace engine::cli {

struct RestartOptions {
  std::string checkpoints;             // their folder
  std::int64_t most = 0;               // restarts in all
  bool alone = false;                  // no other host has to hear of a failure before its ranks begin again
  std::vector<int> memory_files = {};  // of the ranks' checkpoints in memory (executor/memory_checkpoint.h)
};

// A run that makes a checkpoint between two failures, on disk or in memory, and not the same one as before the last failure, gets on, and begins again at once, or after a second where other
// hosts are of it. While it does not, there are pauses, each twice as long as the one before, up to a minute; after the second failure
// it begins from the disk, and the third one is the last.
class Restarts {
 public:
  static constexpr int kMostInVain = 3;  // failures without a checkpoint between them

  explicit Restarts(const RestartOptions& options);

  // Empties the memory files, so that the next attempt begins from the disk: the state that the copies hold may itself have led to the
  // failure.
  void ForgetMemory() const;
  // After one more failure: how long to wait. nullopt: the run stays ended, and why() says so, unless no restarts were asked for.
  std::optional<std::chrono::milliseconds> Next();
  std::int64_t count() const { return count_; }
  std::int64_t most() const { return options_.most; }
  const std::string& why() const { return why_; }

 private:
  std::int64_t Newest() const;  // iteration of the newest checkpoint; -1: there is none

  const RestartOptions options_;
  std::int64_t count_ = 0;
  std::int64_t began_ = -1;      // where the last attempt began
  std::int64_t failed_at_ = -2;  // the newest checkpoint when it failed; -2: none has
  int in_vain_ = 0;
  std::string why_;
};

}  // namespace engine::cli
