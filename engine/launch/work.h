// What a rank can be at, and how long it may be at it without getting on before the run is taken to hang.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/launch/socket.h"

namespace engine::launch {

enum class Work : std::uint8_t {
  kAlone,  // of this rank alone, and nobody knows how long it takes: preparing kernels, the first weights
  kConnecting,  // the communicators of all ranks
  kIteration,   // one of training, but for its wait for data
  kEvaluation,  // one global batch of an evaluation, likewise
  kData,        // inputs are read, or waited for
  kFiles,       // the run's log and metrics are written
  kSaving,      // a checkpoint
};
inline constexpr std::size_t kWorks = 7;

// Limits are learned where work repeats itself: after ten units of a kind, max(least, 3 · median of its last 64). Where a rank waits for
// a file system or a network, a stall is no hang: its limits are minutes. Used by one thread at a time.
class WorkLimits {
 public:
  using Duration = std::chrono::milliseconds;

  static constexpr std::size_t kLearnedAfter = 10;
  static constexpr std::size_t kKept = 64;
  static constexpr int kMedians = 3;

  // `fixed`: one limit for all work but kAlone and kSaving, which then have none; 0: nothing has one. nullopt: they are learned.
  explicit WorkLimits(std::optional<Duration> fixed) : fixed_(fixed) {}

  // A unit of this work begins, and the one under way has ended.
  void Begin(Work work, Clock::time_point now);
  // Other work comes between, and the unit under way goes on at Resume. One at a time.
  void Suspend(Work work);
  void Resume() { suspended_.reset(); }

  Work work() const { return suspended_.value_or(work_); }
  // Of the work under way; nullopt: none.
  std::optional<Duration> Limit() const;

 private:
  struct Units {
    std::vector<Duration> last;  // at most kKept of them, the oldest overwritten
    std::size_t next = 0;
    Duration median{0};  // once there are kLearnedAfter
  };

  const std::optional<Duration> fixed_;
  std::array<Units, kWorks> units_;
  Work work_ = Work::kAlone;
  Clock::time_point began_;
  std::optional<Work> suspended_;  // what has come between
};

}  // namespace engine::launch
