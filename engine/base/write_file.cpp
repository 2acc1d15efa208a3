#include "engine/base/write_file.h"

#include <unistd.h>

#include <cstdint>

namespace engine {
namespace {

absl::Status FillAndRename(const File& file, const std::string& path, Synced synced,
                           const std::function<absl::Status(const File&)>& fill) {
  RETURN_IF_ERROR(fill(file));
  if (synced == Synced::kYes) RETURN_IF_ERROR(file.Sync());
  return Rename(file.path(), path);
}

}  // namespace

absl::Status ReplaceFile(const std::string& path, Synced synced,
                         const std::function<absl::Status(const File&)>& fill) {
  RETURN_IF_ERROR(CheckRegularOrAbsent(path));
  ASSIGN_OR_RETURN(const File file, CreateTemporary(path + ".new", path));
  absl::Status status = FillAndRename(file, path, synced, fill);
  if (!status.ok()) unlink(file.path().c_str());  // a full disk needs its bytes
  return status;
}

absl::Status WriteFile(const std::filesystem::path& path, const std::string& text) {
  return ReplaceFile(path.string(), Synced::kYes, [&text](const File& file) {
    return file.WriteAt(text.data(), static_cast<std::int64_t>(text.size()), 0);
  });
}

}  // namespace engine
