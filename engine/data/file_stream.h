// A file, or an object far away (storage/storage.h), read from its beginning to its end, with the checksum of what has been read.
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "engine/base/file_io.h"
#include "engine/base/hash.h"
#include "engine/storage/block_reader.h"

namespace engine::data {

// What tells, without reading it, that a file or an object may have changed.
struct FileStamp {
  std::int64_t bytes = 0;
  // When it was last written to, since 1970; of an object a number that follows from its version (storage::Object::version).
  std::int64_t changed_ns = 0;

  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};
absl::StatusOr<FileStamp> StampOf(const std::string& path);

class FileStream {
 public:
  // A file must be a regular one; symbolic links to one are followed.
  static absl::StatusOr<FileStream> Open(const std::string& path);

  // Reads `bytes` bytes to `out`, fewer only where the file ends.
  absl::StatusOr<std::size_t> Read(char* out, std::size_t bytes);

  const std::string& path() const { return remote_ ? remote_->object().name() : file_.path(); }
  std::int64_t at() const { return at_; }  // bytes read so far
  std::string Fingerprint() const;         // of them (fingerprint.h)

 private:
  explicit FileStream(File file) : file_(std::move(file)), hasher_(std::make_unique<Hasher>()) {}
  explicit FileStream(storage::Stream stream)
      : remote_(std::move(stream)), hasher_(std::make_unique<Hasher>()) {}

  // One or more bytes at at_; 0: the end.
  absl::StatusOr<std::size_t> ReadSome(char* out, std::size_t bytes);

  File file_;                              // or:
  std::optional<storage::Stream> remote_;  // of an object
  std::int64_t at_ = 0;
  std::unique_ptr<Hasher> hasher_;
};

// The fingerprint of a file's first `bytes` bytes, or of all of them where it has fewer: what FileStream::Fingerprint gives
// after reading so many.
absl::StatusOr<std::string> FingerprintOfFile(const std::string& path, std::int64_t bytes);

}  // namespace engine::data
