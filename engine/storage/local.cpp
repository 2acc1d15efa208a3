#include "engine/storage/local.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "engine/base/file_io.h"
#include "engine/base/status.h"

namespace engine::storage {
namespace {

namespace fs = std::filesystem;

class FileObject : public Object {
 public:
  FileObject(File file, std::int64_t bytes) : Object(file.path(), bytes, ""), file_(std::move(file)) {}

  absl::Status ReadAt(void* data, std::int64_t bytes, std::int64_t offset) const override {
    return file_.ReadAt(data, bytes, offset);
  }

 private:
  const File file_;
};

class FileWriter : public Writer {
 public:
  FileWriter(File file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}
  ~FileWriter() override {
    if (!file_.path().empty()) unlink(file_.path().c_str());
  }

  absl::Status Append(std::string_view bytes) override {
    RETURN_IF_ERROR(file_.WriteAt(bytes.data(), static_cast<std::int64_t>(bytes.size()), at_));
    at_ += static_cast<std::int64_t>(bytes.size());
    return absl::OkStatus();
  }

  absl::Status Finish() override {
    RETURN_IF_ERROR(file_.Sync());
    RETURN_IF_ERROR(Rename(file_.path(), path_));
    file_ = File();
    const std::string folder = fs::path(path_).parent_path().string();
    return SyncFolder(folder.empty() ? "." : folder);
  }

 private:
  File file_;  // of a temporary name; none when that has become the final one
  const std::string path_;
  std::int64_t at_ = 0;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const Object>> OpenFile(const std::string& path) {
  // As everywhere where users name data, through symbolic links.
  ASSIGN_OR_RETURN(const int descriptor, OpenRegular(path, O_RDONLY));
  File file(descriptor, path);
  ASSIGN_OR_RETURN(const std::int64_t bytes, file.Size());
  return std::make_shared<const FileObject>(std::move(file), bytes);
}

absl::StatusOr<std::string> ReadAllOfFile(const std::string& path, std::int64_t most_bytes) {
  return ReadRegular(path, most_bytes);
}

absl::StatusOr<std::vector<Entry>> ListFiles(const std::string& prefix) {
  std::error_code error;
  std::string folder = fs::path(prefix).parent_path().string();
  if (folder.empty()) folder = prefix.starts_with('/') ? "/" : ".";
  std::vector<Entry> entries;
  if (!fs::exists(folder, error)) return entries;
  fs::recursive_directory_iterator it(folder, error);
  for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    std::string name = it->path().string();
    if (folder == "." && !prefix.starts_with("./")) name.erase(0, 2);
    std::error_code of_entry;
    const bool leads_there = name.starts_with(prefix) || prefix.starts_with(name);
    if (it->is_directory(of_entry) && !leads_there) it.disable_recursion_pending();
    if (!name.starts_with(prefix) || !it->is_regular_file(of_entry)) continue;
    entries.push_back({name, static_cast<std::int64_t>(it->file_size(of_entry))});
  }
  if (error) return SystemError("list", folder, error.value());
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.name < b.name; });
  return entries;
}

absl::StatusOr<std::unique_ptr<Writer>> CreateFileWriter(const std::string& path) {
  RETURN_IF_ERROR(CheckRegularOrAbsent(path));
  ASSIGN_OR_RETURN(File file, CreateTemporary(fmt::format("{}.tmp.{}", path, getpid()), path));
  return std::make_unique<FileWriter>(std::move(file), path);
}

absl::Status RemoveFile(const std::string& path) {
  if (unlink(path.c_str()) == 0) return absl::OkStatus();
  return SystemError("remove", path, errno);
}

}  // namespace engine::storage
