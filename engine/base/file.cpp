#include "engine/base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "engine/base/status.h"

namespace engine {
namespace {

std::string_view KindOf(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a named pipe";
  if (S_ISLNK(mode)) return "a symbolic link";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

absl::Status CheckMode(mode_t mode, const std::string& path) {
  if (S_ISREG(mode)) return absl::OkStatus();
  return InvalidArgument("{} is {}, not a regular file", path, KindOf(mode));
}

}  // namespace

absl::Status SystemError(std::string_view operation, const std::string& path, int error_number) {
  const std::string text =
      fmt::format("cannot {} {}: {}", operation, path, std::generic_category().message(error_number));
  switch (error_number) {
    case ENOENT:
      return absl::NotFoundError(text);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(text);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(text);
    default:
      return absl::UnavailableError(text);
  }
}

absl::StatusOr<int> OpenRegular(const std::string& path, int flags, const std::string& called) {
  const std::string& name = called.empty() ? path : called;
  // Asked before, since opening a device may do something; asked again of what was opened.
  struct stat info {};
  const bool is_there = ((flags & O_NOFOLLOW) != 0 ? lstat : stat)(path.c_str(), &info) == 0;
  if (is_there) RETURN_IF_ERROR(CheckMode(info.st_mode, path));
  int descriptor = -1;
  do {  // O_NONBLOCK: a pipe that has come in between must not wait for its other end
    descriptor = open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666);
  } while (descriptor < 0 && errno == EINTR);
  if (descriptor < 0) return SystemError("open", name, errno);
  const absl::Status status =
      fstat(descriptor, &info) != 0 ? SystemError("inspect", name, errno) : CheckMode(info.st_mode, path);
  if (status.ok()) return descriptor;
  close(descriptor);
  return status;
}

absl::Status CheckRegularOrAbsent(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) == 0) return CheckMode(info.st_mode, path);
  return errno == ENOENT ? absl::OkStatus() : SystemError("inspect", path, errno);
}

absl::StatusOr<std::string> ReadRegular(const std::string& path, std::int64_t most_bytes) {
  ASSIGN_OR_RETURN(const int descriptor, OpenRegular(path, O_RDONLY));
  std::string text;
  absl::Status status;
  constexpr std::size_t kLeastBytes = 4096;
  constexpr std::size_t kMostBytes = std::size_t{1} << 20;
  for (ssize_t got = 1; got != 0;) {
    const std::size_t used = text.size();
    const std::size_t block = std::clamp(used, kLeastBytes, kMostBytes);  // most files are small
    if (static_cast<std::int64_t>(used) > most_bytes) {
      status = ResourceExhausted("{} has more than {} bytes", path, most_bytes);
      break;
    }
    text.resize(used + block);
    got = read(descriptor, text.data() + used, block);
    const int error = errno;
    text.resize(used + (got > 0 ? static_cast<std::size_t>(got) : 0));
    if (got < 0 && error != EINTR) {
      status = SystemError("read", path, error);
      break;
    }
  }
  close(descriptor);
  if (!status.ok()) return status;
  return text;
}

}  // namespace engine
