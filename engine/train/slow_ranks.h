// Which ranks of a run are slow, by the busy times of logged iterations.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

namespace engine::train {

// A rank is slow where its busy time was above 1.3 × the median of all in three of the last five logged iterations, and 5 ms above it.
class SlowRanks {
 public:
  static constexpr double kFactor = 1.3;
  static constexpr double kLeastMs = 5;  // what a loaded host may cost a rank now and then
  static constexpr std::size_t kWindow = 5;
  static constexpr std::int64_t kOften = 3;

  struct Slow {
    std::int64_t rank = 0;
    double factor = 0;  // its busy time in the newest iteration / the median
  };

  // The busy times of one more iteration, in ms, by rank. Returns the ranks that have become slow with it: each is told once, and
  // again where it was not slow in between.
  std::vector<Slow> Add(const std::vector<double>& busy_ms);

 private:
  std::deque<std::vector<bool>> above_;  // by iteration, then rank
  std::vector<bool> told_;               // by rank
};

}  // namespace engine::train
