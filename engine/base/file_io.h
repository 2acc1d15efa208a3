// POSIX files with errors as statuses: each names the operation, the path and the system's reason.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "engine/base/file.h"

namespace engine {

// Owns a file descriptor.
class File {
 public:
  File() = default;
  // `called`: its name in errors; empty: its path.
  File(int fd, std::string path, std::string called = "")
      : fd_(fd), path_(std::move(path)), called_(std::move(called)) {}
  File(File&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)), called_(std::move(other.called_)) {}
  File& operator=(File&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(path_, other.path_);
    std::swap(called_, other.called_);
    return *this;
  }
  ~File();

  int fd() const { return fd_; }
  const std::string& path() const { return path_; }

  absl::Status WriteAt(const void* data, std::int64_t bytes, std::int64_t offset) const;
  absl::Status ReadAt(void* data, std::int64_t bytes, std::int64_t offset) const;  // short files are DataLoss
  absl::StatusOr<std::int64_t> Size() const;
  absl::Status Resize(std::int64_t bytes) const;
  absl::Status Reserve(
      std::int64_t bytes) const;  // resizes and, where the file system can, takes the disk space
  absl::Status Sync() const;      // fsync

 private:
  const std::string& name() const { return called_.empty() ? path_ : called_; }

  int fd_ = -1;
  std::string path_;
  std::string called_;
};

// Only regular files (base/file.h); symbolic links are refused.
absl::StatusOr<File> CreateFile(const std::string& path);  // new or emptied, read and write
// The same, of a file that gets the name `called` when it is whole: errors name that one, which is what the user knows.
absl::StatusOr<File> CreateTemporary(const std::string& path, const std::string& called);
absl::StatusOr<File> OpenForWriting(const std::string& path);  // as it stands there, or new; read and write
absl::StatusOr<File> OpenForReading(const std::string& path);
absl::StatusOr<File> OpenFolder(const std::string& path);
// Scratch in memory (/dev/shm; the system's temporary folder where there is none), sparse. Its owner unlinks
// it.
absl::StatusOr<File> CreateMemoryFile();

absl::Status SyncFolder(const std::string& path);
absl::Status WriteWholeFile(const std::string& path, std::string_view content);  // and fsync
absl::StatusOr<std::string> ReadWholeFile(const std::string& path, std::int64_t most_bytes);
absl::StatusOr<std::string> ChecksumOf(const std::string& path,
                                       std::int64_t bytes);  // of the first `bytes` bytes
absl::Status Rename(const std::string& from, const std::string& to);
absl::Status RemoveTree(const std::string& path);

// Removes a folder unless a living process holds its lock (flock); false if one does.
absl::StatusOr<bool> RemoveUnlessLocked(const std::string& path);
absl::Status LockFolder(const File& folder);  // until the File is closed or its process ends

}  // namespace engine
