// Makes the faults of a run (train/fault.h) when they are due, and keeps count of them over its restarts.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/executor/executor.h"
#include "engine/train/fault.h"

namespace engine::train {

// One at a time in a process, as it listens to what the process writes. Each fault is told on standard error and
// written into DIR/faults.jsonl, synced, before it is made: a run that is started again in the folder does not make it
// again. One that comes `every` so many iterations is written once a process.
class FaultKit {
 public:
  // `out`: the run's folder. Error: faults.jsonl cannot be read.
  static absl::StatusOr<std::unique_ptr<FaultKit>> Open(const std::vector<Fault>& faults,
                                                        const std::string& out);
  ~FaultKit();
  FaultKit(const FaultKit&) = delete;
  FaultKit& operator=(const FaultKit&) = delete;

  // A rank is at this moment of an iteration, from 1. From any rank's thread. Errors: faults.jsonl cannot be written; the
  // device's.
  absl::Status At(executor::RankExecutor& rank, executor::Moment moment, std::int64_t iteration);
  // The run is at its end: warns of faults of this rank that were not made, as it did not come to their place in their iteration.
  void TellMissed(std::int64_t rank) const;

 private:
  struct Planned {
    Fault fault;
    std::string text;
    bool done = false;                                        // in this run or one before it in the folder
    std::int64_t made_in = 0;                                 // the last iteration in which it was
    std::chrono::steady_clock::time_point passes_began = {};  // of a slow rank
    bool slows = false;                                       // this iteration
  };

  FaultKit(const std::vector<Fault>& faults, const std::string& out);
  absl::Status TakeDone();
  // Whether the fault is to be made now; then it is on record.
  absl::StatusOr<bool> Claim(Planned& planned, std::int64_t iteration);
  absl::Status Record(const Planned& planned, std::int64_t iteration) const;
  // A write of this process. Returns an errno by which it fails, or 0.
  int OnWrite(const std::string& path);

  const std::string path_;  // faults.jsonl
  std::mutex mutex_;        // guards what follows, but for times of a rank, which its thread alone knows
  std::vector<Planned> planned_;
};

}  // namespace engine::train
