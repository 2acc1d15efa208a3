// Iterations that are trained twice, and compared bit by bit (guard.rerun). The same program on the same numbers gives the same
// bits, so where it does not, a machine is at fault.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "engine/base/status.h"
#include "engine/executor/executor.h"
#include "engine/train/exchange_records.h"
#include "engine/train/report.h"

namespace engine::train {

class Rerun {
 public:
  // Remembers so many iterations, the last ones.
  explicit Rerun(std::int64_t most) : most_(most) {}

  // An iteration has been trained. Error (Internal, so that the run may be tried again): it was trained before, and its loss or
  // gradient norm had other bits. What was left out before it is the same.
  absl::Status Take(const IterationReport& report);
  // What this process' ranks exchanged in it, with guard.trace; before Take.
  void TakeTraces(std::int64_t iteration, std::vector<executor::IterationResult>* results);
  // By rank of this process; none before TakeTraces.
  const std::vector<ExchangeRecords>& exchanges() const { return exchanges_; }
  // Whether it has been trained more than once.
  bool Confirms(std::int64_t iteration) const;

 private:
  struct Numbers {
    double loss = 0;
    double grad_norm = 0;
    std::int64_t times = 0;
  };

  std::int64_t most_ = 0;
  std::map<std::int64_t, Numbers> trained_;  // by iteration
  std::vector<ExchangeRecords> exchanges_;
};

}  // namespace engine::train
