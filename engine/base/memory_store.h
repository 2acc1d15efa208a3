// A Store of ranks that are threads of one process.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "engine/base/store.h"

namespace engine {

class MemoryStore final : public Store {
 public:
  absl::Status Set(const std::string& key, std::string value) override;
  // Waits without a limit, until End.
  absl::StatusOr<std::string> Get(const std::string& key) override;

  // The run ends for this reason, an Aborted: waits return it from now on. The first reason stays.
  void End(const absl::Status& why);
  absl::Status status() const;  // ok, or the reason

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  absl::Status end_;
};

}  // namespace engine
