// A file that grows record by record, while others read it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/base/file_io.h"

namespace engine::metrics {

class AppendFile {
 public:
  explicit AppendFile(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }

  // Opens the file where it is not open, or has been removed since: as it stands, or new. Its folder has to be there.
  // Returns its size in bytes.
  absl::StatusOr<std::int64_t> Open();
  // Appends all of `bytes`, or nothing: on an error, such as of a full disk, it cuts off what was written of them. After Open.
  absl::Status Append(std::string_view bytes);
  // Takes back what was appended after the file had that size in bytes, as far as the file system lets it. After Open.
  void TakeBack(std::int64_t size);

 private:
  std::string path_;
  std::optional<File> file_;
};

}  // namespace engine::metrics
