// Two runs in one folder would mix: whoever runs in it holds its lock.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include "engine/base/status.h"

namespace engine::train {

// Holds a run's folder for as long as it lives.
class RunLock {
 public:
  // Creates the folder where it is missing, and says in it who holds it (DIR/holder.json). Errors: it cannot be created or opened; another
  // run holds it, and still does after `patience`; before it waits, it calls `waits` once with who that is, as far as the folder says.
  // A file system without locks refuses nobody.
  static absl::StatusOr<RunLock> Take(const std::string& folder, std::chrono::milliseconds patience = {},
                                      const std::function<void(const std::string& holder)>& waits = {});
  RunLock(RunLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  RunLock& operator=(RunLock&&) = delete;
  ~RunLock();

 private:
  explicit RunLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

}  // namespace engine::train
