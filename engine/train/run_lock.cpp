#include "engine/train/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <thread>

namespace engine::train {

absl::StatusOr<RunLock> RunLock::Take(const std::string& folder, std::chrono::milliseconds patience) {
  constexpr auto kLook = std::chrono::milliseconds(50);
  const auto deadline = std::chrono::steady_clock::now() + patience;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return Unavailable("{}: cannot create: {}", folder, error.message());
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return Unavailable("{}: cannot open: {}", folder, std::strerror(errno));
  RunLock lock(descriptor);
  while (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return lock;  // a file system without locks
    if (std::chrono::steady_clock::now() >= deadline)
      return FailedPrecondition("{} is in use by another run; wait for its end, or give another --out",
                                folder);
    std::this_thread::sleep_for(kLook);
  }
  return lock;
}

RunLock::~RunLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace engine::train
