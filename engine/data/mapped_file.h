// A whole file, read-only, in memory by mmap. The file must not shrink while it is mapped. Of s3:// and http(s):// it is the copy on
// this machine (storage/copies.h).
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <span>
#include <string>

namespace engine::data {

class MappedFile {
 public:
  static absl::StatusOr<MappedFile> Open(const std::string& name);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

}  // namespace engine::data
