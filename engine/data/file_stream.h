// A file read from its beginning to its end, with the checksum of what has been read.
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/base/file_io.h"
#include "engine/base/hash.h"

namespace engine::data {

// What tells, without reading it, that a file may have changed.
struct FileStamp {
  std::int64_t bytes = 0;
  std::int64_t changed_ns = 0;  // when it was last written to, since 1970

  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};
absl::StatusOr<FileStamp> StampOf(const std::string& path);

class FileStream {
 public:
  // Only regular files, also behind symbolic links.
  static absl::StatusOr<FileStream> Open(const std::string& path);

  // Reads `bytes` bytes to `out`, fewer only where the file ends.
  absl::StatusOr<std::size_t> Read(char* out, std::size_t bytes);

  const std::string& path() const { return file_.path(); }
  std::int64_t at() const { return at_; }  // bytes read so far
  std::string Fingerprint() const;         // of them (fingerprint.h)

 private:
  explicit FileStream(File file) : file_(std::move(file)), hasher_(std::make_unique<Hasher>()) {}

  File file_;
  std::int64_t at_ = 0;
  std::unique_ptr<Hasher> hasher_;
};

// Of the first `bytes` bytes of a file, or of all where it has fewer: as FileStream's after so many.
absl::StatusOr<std::string> FingerprintOfFile(const std::string& path, std::int64_t bytes);

}  // namespace engine::data
