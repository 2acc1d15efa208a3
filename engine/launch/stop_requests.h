// What the signals mean that ask a process to stop: SIGINT, SIGTERM and SIGHUP.
#pragma once

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>

namespace engine::launch {

class StopRequests {
 public:
  enum class Meaning { kStop, kSame, kInsists };

  // Counts one more signal and says what it means; safe in its handler. The first asks for a stop. Whoever
  // sends another one afterwards wants it at once, but many a sender sends two for one: timeout(1) to the
  // process and to its group, a terminal to the group and a supervisor to its ranks. SIGHUP comes by itself,
  // as often as it will.
  Meaning Take(int number) {
    constexpr std::int64_t kOneRequest = std::chrono::nanoseconds(std::chrono::milliseconds(500)).count();
    const std::int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
    std::int64_t first = 0;
    if (first_ns_.compare_exchange_strong(first, now)) return Meaning::kStop;
    return number != SIGHUP && now - first > kOneRequest ? Meaning::kInsists : Meaning::kSame;
  }
  bool any() const { return first_ns_ != 0; }
  void Forget() { first_ns_ = 0; }

 private:
  std::atomic<std::int64_t> first_ns_ = 0;  // of the steady clock; 0: none has come
};

// Said by whoever ends a run on an insisting signal.
inline constexpr const char* kStoppedAtOnce =
    "stopped at once: what was done since the last checkpoint is not saved";

static_assert(std::atomic<std::int64_t>::is_always_lock_free);

}  // namespace engine::launch
