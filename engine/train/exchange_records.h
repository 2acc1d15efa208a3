// Where iterations that are trained twice first differ in what ranks exchange (guard.trace).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/executor/exchange_trace.h"

namespace engine::train {

// Of one rank.
class ExchangeRecords {
 public:
  // Where a rank first gave, or got, other bits than before.
  struct Difference {
    std::int64_t iteration = 0;  // from 1
    std::int64_t place = 0;      // among all that the rank gave and got in it
    std::int32_t exchange = 0;   // executor::TracingCommunicator::NameOf
    bool got = false;            // else it gave them
  };

  // Remembers so many iterations, the last ones.
  explicit ExchangeRecords(std::int64_t most) : most_(most) {}

  // What the rank exchanged in an iteration; it is compared where that was trained before, and no difference has been found yet.
  void Take(std::int64_t iteration, std::vector<executor::TracedBytes> traced);
  const std::optional<Difference>& first() const { return first_; }

 private:
  std::int64_t most_ = 0;
  std::map<std::int64_t, std::vector<executor::TracedBytes>> before_;  // by iteration
  std::optional<Difference> first_;
};

// What a rank says of its first difference.
struct ExchangeVerdict {
  std::int64_t rank = 0;
  std::string host;
  bool differs = false;  // what follows is of its first difference
  std::int64_t iteration = 0;
  std::int64_t place = 0;
  std::string exchange;
  bool got = false;
};

// Whose fault it is, by the verdicts of all ranks, in sentences for a person: the ranks that gave other bits though they had got the same till
// then, or, where there is none, those that first got other bits. `one_program`: all ranks run the same one, so that of the latter the
// first in it can be told; else all are named.
std::string Blame(const std::vector<ExchangeVerdict>& ranks, bool one_program);

}  // namespace engine::train
