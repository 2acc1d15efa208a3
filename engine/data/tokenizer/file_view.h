// A regular file, read-only, in memory by mmap. It must not shrink while it is mapped.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <string_view>

namespace engine::tokenizer {

class FileView {
 public:
  static absl::StatusOr<FileView> Open(const std::string& path);
  FileView(FileView&& other) noexcept : bytes_(other.bytes_) { other.bytes_ = {}; }
  FileView& operator=(FileView&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~FileView();

  std::string_view bytes() const { return bytes_; }

 private:
  explicit FileView(std::string_view bytes) : bytes_(bytes) {}
  std::string_view bytes_;
};

}  // namespace engine::tokenizer
