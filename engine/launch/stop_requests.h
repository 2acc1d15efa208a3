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
  // process and to its group, a terminal to the group and a supervisor to its ranks. So what comes within half a second of a
  // request is a repetition of it. SIGHUP comes by itself, as often as it will.
  Meaning Take(int number) {
    constexpr std::int64_t kOneRequest = std::chrono::nanoseconds(std::chrono::milliseconds(500)).count();
    const std::int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
    std::int64_t last = 0;
    if (last_ns_.compare_exchange_strong(last, now)) return Meaning::kStop;
    if (number == SIGHUP || now - last <= kOneRequest) return Meaning::kSame;
    last_ns_ = now;
    return Meaning::kInsists;
  }
  bool any() const { return last_ns_ != 0; }
  void Forget() { last_ns_ = 0; }

 private:
  std::atomic<std::int64_t> last_ns_ = 0;  // the last request, by the steady clock; 0: none has come
};

// Said by whoever ends a run on an insisting signal.
inline constexpr const char* kStoppedAtOnce =
    "stopped at once: what was done since the last checkpoint is not saved";

static_assert(std::atomic<std::int64_t>::is_always_lock_free);

}  // namespace engine::launch
