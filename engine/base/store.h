// Named byte strings that the processes of one run share.
#pragma once

#include <absl/status/statusor.h>

#include <string>

namespace engine {

// Callable from any thread.
class Store {
 public:
  virtual ~Store() = default;

  virtual absl::Status Set(const std::string& key, std::string value) = 0;
  // Waits until the key is there. Errors: Aborted where the run ends first, DeadlineExceeded where the wait
  // is too long.
  virtual absl::StatusOr<std::string> Get(const std::string& key) = 0;
};

}  // namespace engine
