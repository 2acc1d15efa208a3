// What `engine doctor` finds, a line each.
#pragma once

#include <string>
#include <vector>

#include "engine/base/status.h"

namespace engine::cli {

struct Finding {
  enum class State { kOk, kMissing, kTooOld, kFailed };
  std::string what;  // "cuDNN"
  State state = State::kOk;
  std::string detail;  // what was found, or what is wrong and what would be right
  bool needed = true;  // for a run on one GPU
};

// A finding of what went wrong: NotFound is missing, FailedPrecondition too old, anything else failed.
Finding FindingOf(std::string what, const absl::Status& status);

// Toolkit, driver, GPUs, libraries, in that order.
std::vector<Finding> CudaFindings();

// The cache of chosen algorithms.
Finding CacheFinding();

}  // namespace engine::cli
