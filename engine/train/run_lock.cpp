#include "engine/train/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace engine::train {

absl::StatusOr<RunLock> RunLock::Take(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return Unavailable("{}: cannot create: {}", folder, error.message());
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return Unavailable("{}: cannot open: {}", folder, std::strerror(errno));
  RunLock lock(descriptor);
  if (flock(descriptor, LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno != EWOULDBLOCK) return lock;  // a file system without locks
  return FailedPrecondition("{} is in use by another run; wait for its end, or give another --out", folder);
}

RunLock::~RunLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace engine::train
