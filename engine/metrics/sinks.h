// The sinks of a run, fed in one place. No error of a sink is an error of the run.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/metrics/sink.h"

namespace engine::metrics {

class Sinks {
 public:
  using Clock = std::chrono::steady_clock;

  // Records that wait for a sink that fails; of more the oldest are dropped, and counted.
  static constexpr std::size_t kMostWaiting = 10000;
  static constexpr Clock::duration kRetryAfter = std::chrono::minutes(1);

  // Of a sink that fails `warn` gets one text, and another only after it has worked again, or where records are lost.
  explicit Sinks(std::function<void(const std::string&)> warn, Clock::duration retry_after = kRetryAfter)
      : warn_(std::move(warn)), retry_after_(retry_after) {}

  // Of iterations the sink gets each `interval`-th.
  void Add(std::unique_ptr<Sink> sink, std::int64_t interval = 1);
  void Write(const Record& record);
  // Tries once more to write what waits, and closes all sinks. Nothing is written after it.
  void Close(bool succeeded);

 private:
  struct Entry {
    std::unique_ptr<Sink> sink;
    std::int64_t interval = 1;
    std::deque<Record> waiting = {};  // not empty: the sink fails
    std::int64_t dropped = 0;
    Clock::time_point retry_at = {};
  };

  // Writes what waits, in order, until it fails.
  absl::Status WriteWaiting(Entry& entry);
  void Pass(Entry& entry, const Record& record);
  void Close(Entry& entry, bool succeeded);

  std::function<void(const std::string&)> warn_;
  Clock::duration retry_after_;
  std::vector<Entry> entries_;
};

}  // namespace engine::metrics
