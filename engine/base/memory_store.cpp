#include "engine/base/memory_store.h"

#include <utility>

namespace engine {

absl::Status MemoryStore::Set(const std::string& key, std::string value) {
  const std::lock_guard lock(mutex_);
  values_[key] = std::move(value);
  changed_.notify_all();
  return absl::OkStatus();
}

absl::StatusOr<std::string> MemoryStore::Get(const std::string& key) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !end_.ok() || values_.contains(key); });
  if (!end_.ok()) return end_;
  return values_.at(key);
}

void MemoryStore::End(const absl::Status& why) {
  const std::lock_guard lock(mutex_);
  if (end_.ok()) end_ = why;
  changed_.notify_all();
}

absl::Status MemoryStore::status() const {
  const std::lock_guard lock(mutex_);
  return end_;
}

}  // namespace engine
