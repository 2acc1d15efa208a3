#include "engine/metrics/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "engine/base/status.h"

namespace engine::metrics {
namespace {

// Whether the file has still a name.
bool IsRemoved(const File& file) {
  struct stat info {};
  return fstat(file.fd(), &info) != 0 || info.st_nlink == 0;
}

}  // namespace

absl::StatusOr<std::int64_t> AppendFile::Open() {
  if (file_ && IsRemoved(*file_)) file_.reset();
  if (!file_) {
    ASSIGN_OR_RETURN(const int descriptor, OpenRegular(path_, O_WRONLY | O_CREAT | O_APPEND));
    file_.emplace(descriptor, path_);
  }
  return file_->Size();
}

absl::Status AppendFile::Append(std::string_view bytes) {
  ENGINE_CHECK(file_.has_value(), "{} is not open", path_);
  ASSIGN_OR_RETURN(const std::int64_t size, file_->Size());
  absl::Status status = file_->WriteAt(bytes.data(), static_cast<std::int64_t>(bytes.size()), size);
  if (!status.ok()) TakeBack(size);
  return status;
}

void AppendFile::TakeBack(std::int64_t size) {
  ENGINE_CHECK(file_.has_value(), "{} is not open", path_);
  file_->Resize(size).IgnoreError();
}

}  // namespace engine::metrics
