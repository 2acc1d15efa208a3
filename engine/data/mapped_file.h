// A whole file, read-only, in memory by mmap. The file must not shrink while it is mapped. Of s3:// and http(s):// it is the copy on
// this machine (storage/copies.h).
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <span>
#include <string>

namespace engine::data {

// How a file will be read: from its beginning to its end, or here and there, where the system's reading ahead (megabytes on some
// disks, for each place) would be for nothing.
enum class Access { kSequential, kRandom };

// Begins to read what lies there of a mapped file, and returns; without it each page of a file of random access is a read by itself.
void StartReading(std::span<const std::byte> mapped);

class MappedFile {
 public:
  static absl::StatusOr<MappedFile> Open(const std::string& name, Access access = Access::kSequential);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

}  // namespace engine::data
