#include "engine/base/file_io.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>
#include <vector>

#include "engine/base/hash.h"
#include "engine/base/status.h"
#include "engine/base/write_observer.h"

namespace engine {
namespace {

constexpr std::int64_t kHashBlockBytes = std::int64_t{1}
                                         << 20;  // stays in the second-level cache between copy and hash

std::atomic<const WriteObserver*> write_observer = nullptr;

absl::StatusOr<File> Open(const std::string& path, int flags, const std::string& called = "") {
  ASSIGN_OR_RETURN(const int descriptor, OpenRegular(path, flags | O_NOFOLLOW, called));
  return File(descriptor, path, called);
}

}  // namespace

void SetWriteObserver(WriteObserver observer) {
  static std::vector<std::unique_ptr<const WriteObserver>>
      all;  // kept: a write on another thread may be calling one
  write_observer = nullptr;
  if (!observer) return;
  all.push_back(std::make_unique<const WriteObserver>(std::move(observer)));
  write_observer = all.back().get();
}

File::~File() {
  if (fd_ >= 0) close(fd_);
}

absl::Status File::WriteAt(const void* data, std::int64_t bytes, std::int64_t offset) const {
  if (const WriteObserver* observer = write_observer) {
    if (const int error = (*observer)(path_); error != 0) return SystemError("write", name(), error);
  }
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = pwrite(fd_, from, static_cast<std::size_t>(bytes), offset);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return SystemError("write", name(), done < 0 ? errno : ENOSPC);
    from += done;
    offset += done;
    bytes -= done;
  }
  return absl::OkStatus();
}

absl::Status File::ReadAt(void* data, std::int64_t bytes, std::int64_t offset) const {
  char* to = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t done = pread(fd_, to, static_cast<std::size_t>(bytes), offset);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return SystemError("read", name(), errno);
    if (done == 0) return DataLoss("{} ends at byte {}, {} bytes too early", name(), offset, bytes);
    to += done;
    offset += done;
    bytes -= done;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::int64_t> File::Size() const {
  struct stat info {};
  if (fstat(fd_, &info) != 0) return SystemError("inspect", name(), errno);
  return static_cast<std::int64_t>(info.st_size);
}

absl::Status File::Resize(std::int64_t bytes) const {
  if (ftruncate(fd_, bytes) != 0)
    return SystemError(fmt::format("make room for {} bytes in", bytes), name(), errno);
  return absl::OkStatus();
}

absl::Status File::Reserve(std::int64_t bytes) const {
  RETURN_IF_ERROR(Resize(bytes));
  if (bytes > 0 && fallocate(fd_, 0, 0, bytes) != 0 && errno != EOPNOTSUPP && errno != ENOSYS &&
      errno != EINTR) {
    return SystemError(fmt::format("make room for {} bytes in", bytes), name(), errno);
  }
  return absl::OkStatus();
}

absl::Status File::Sync() const {
  if (fsync(fd_) != 0) return SystemError("sync", name(), errno);
  return absl::OkStatus();
}

absl::StatusOr<File> CreateFile(const std::string& path) { return CreateTemporary(path, ""); }

absl::StatusOr<File> CreateTemporary(const std::string& path, const std::string& called) {
  return Open(path, O_RDWR | O_CREAT | O_TRUNC, called);
}

absl::StatusOr<File> OpenForWriting(const std::string& path) { return Open(path, O_RDWR | O_CREAT); }

absl::StatusOr<File> OpenForReading(const std::string& path) { return Open(path, O_RDONLY); }

absl::StatusOr<File> OpenFolder(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return SystemError("open", path, errno);
  return File(descriptor, path);
}

absl::StatusOr<File> CreateMemoryFile() {
  std::error_code error;
  std::string folder = "/dev/shm";
  if (access(folder.c_str(), W_OK) != 0) folder = std::filesystem::temp_directory_path(error);
  std::string path = folder + "/engine-XXXXXX";
  const int fd = mkostemp(path.data(), O_CLOEXEC);
  if (fd < 0) return SystemError("create", path, errno);
  return File(fd, path);
}

absl::Status SyncFolder(const std::string& path) {
  ASSIGN_OR_RETURN(File folder, OpenFolder(path));
  return folder.Sync();
}

absl::Status WriteWholeFile(const std::string& path, std::string_view content) {
  ASSIGN_OR_RETURN(File file, CreateFile(path));
  RETURN_IF_ERROR(file.WriteAt(content.data(), static_cast<std::int64_t>(content.size()), 0));
  return file.Sync();
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path, std::int64_t most_bytes) {
  ASSIGN_OR_RETURN(File file, OpenForReading(path));
  ASSIGN_OR_RETURN(const std::int64_t bytes, file.Size());
  if (bytes > most_bytes)
    return DataLoss("{} has {} bytes; at most {} are possible", path, bytes, most_bytes);
  std::string content(static_cast<std::size_t>(bytes), '\0');
  RETURN_IF_ERROR(file.ReadAt(content.data(), bytes, 0));
  return content;
}

absl::StatusOr<std::string> ChecksumOf(const std::string& path, std::int64_t bytes) {
  ASSIGN_OR_RETURN(File file, OpenForReading(path));
  posix_fadvise(file.fd(), 0, 0, POSIX_FADV_SEQUENTIAL);
  std::vector<char> block(static_cast<std::size_t>(std::min(bytes, kHashBlockBytes)));
  Hasher hasher;
  for (std::int64_t offset = 0; offset < bytes; offset += kHashBlockBytes) {
    const std::int64_t part = std::min(kHashBlockBytes, bytes - offset);
    RETURN_IF_ERROR(file.ReadAt(block.data(), part, offset));
    hasher.Update(block.data(), static_cast<std::size_t>(part));
  }
  return hasher.HexDigest();
}

absl::Status Rename(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  return SystemError(fmt::format("rename {} to", from), to, errno);
}

absl::Status RemoveTree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) return SystemError("remove", path, error.value());
  return absl::OkStatus();
}

absl::Status LockFolder(const File& folder) {
  if (flock(folder.fd(), LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
  // File systems without locks are used without this protection.
  if (errno != EWOULDBLOCK) return absl::OkStatus();
  return FailedPrecondition("{} is in use by another writer", folder.path());
}

absl::StatusOr<bool> RemoveUnlessLocked(const std::string& path) {
  if (absl::StatusOr<File> folder = OpenFolder(path); folder.ok()) {
    if (!LockFolder(*folder).ok()) return false;
    RETURN_IF_ERROR(RemoveTree(path));
    return true;
  }
  RETURN_IF_ERROR(RemoveTree(path));
  return true;
}

}  // namespace engine
