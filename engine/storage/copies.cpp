#include "engine/storage/copies.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "engine/base/cache_folder.h"
#include "engine/base/hash.h"
#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/base/units.h"
#include "engine/storage/storage.h"

namespace engine::storage {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kDefaultLimit = std::int64_t{32} << 30;
constexpr std::int64_t kPieceBytes = std::int64_t{8} << 20;
constexpr int kPiecesUnderWay = 4;
constexpr std::size_t kNameDigits = 32;

absl::StatusOr<std::int64_t> Limit() {
  const char* text = std::getenv("ENGINE_CACHE_LIMIT");
  if (text == nullptr || *text == '\0') return kDefaultLimit;
  if (const std::optional<std::int64_t> bytes = ParseBytes(text)) return *bytes;
  return InvalidArgument("ENGINE_CACHE_LIMIT is \"{}\", and must be a size, such as 100GB", Shown(text));
}

absl::StatusOr<std::string> Folder() {
  const std::string cache = CacheFolder();
  if (cache.empty())
    return FailedPrecondition("there is no folder for copies: set ENGINE_CACHE, XDG_CACHE_HOME or HOME");
  const std::string folder = (fs::path(cache) / "objects").string();
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    return WithContext(SystemError("make the folder", folder, error.value()),
                       "ENGINE_CACHE can name another");
  return folder;
}

// Piece by piece, several at once.
absl::Status CopyTo(const Object& object, const File& file) {
  RETURN_IF_ERROR(file.Reserve(object.size()));
  std::atomic<std::int64_t> next = 0;
  std::mutex mutex;
  absl::Status first_error;
  const auto work = [&] {
    std::vector<char> piece(static_cast<std::size_t>(std::min(kPieceBytes, object.size())));
    while (true) {
      const std::int64_t at = next.fetch_add(kPieceBytes);
      if (at >= object.size()) return;
      const std::int64_t bytes = std::min(kPieceBytes, object.size() - at);
      absl::Status status = object.ReadAt(piece.data(), bytes, at);
      if (status.ok()) status = file.WriteAt(piece.data(), bytes, at);
      if (status.ok()) continue;
      const std::lock_guard lock(mutex);
      first_error.Update(status);
      next = object.size();
    }
  };
  std::vector<std::thread> threads;
  const std::int64_t pieces = CeilDiv(object.size(), kPieceBytes);
  for (std::int64_t i = 1; i < std::min<std::int64_t>(kPiecesUnderWay, pieces); ++i)
    threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  return first_error;
}

// Removes its file when it ends, whatever it is called then.
class Removed {
 public:
  explicit Removed(std::string path) : path_(std::move(path)) {}
  ~Removed() { unlink(path_.c_str()); }
  Removed(const Removed&) = delete;
  Removed& operator=(const Removed&) = delete;
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

// The copies, and what dead processes have left. A process that has a copy open keeps it. What cannot be removed stays.
void MakeRoom(const std::string& folder, const std::string& newest, std::int64_t limit) {
  struct Copy {
    fs::file_time_type used;
    std::int64_t bytes;
    fs::path path;
  };
  constexpr std::chrono::hours kAbandoned{48};
  std::vector<Copy> copies;
  std::int64_t total = 0;
  std::error_code error;
  for (fs::directory_iterator it(folder, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    std::error_code of_file;
    const fs::file_time_type used = it->last_write_time(of_file);
    const auto bytes = static_cast<std::int64_t>(it->file_size(of_file));
    if (of_file) continue;
    if (it->path().filename().string().size() == kNameDigits) {
      total += bytes;
      if (it->path() != newest) copies.push_back({used, bytes, it->path()});
    } else if (fs::file_time_type::clock::now() - used > kAbandoned) {
      fs::remove(it->path(), of_file);
    }
  }
  std::sort(copies.begin(), copies.end(), [](const Copy& a, const Copy& b) { return a.used < b.used; });
  for (const Copy& copy : copies) {
    if (total <= limit) return;
    if (fs::remove(copy.path, error)) total -= copy.bytes;
  }
}

// The copy of that path, if it is there; its use is noted.
absl::StatusOr<File> Find(const std::string& path, std::int64_t bytes) {
  ASSIGN_OR_RETURN(File file, OpenForReading(path));
  ASSIGN_OR_RETURN(const std::int64_t size, file.Size());
  if (size != bytes) return DataLoss("{} has {} bytes and not {}", path, size, bytes);
  futimens(file.fd(), nullptr);
  return file;
}

absl::StatusOr<File> Fetch(const Object& object, const std::string& folder, const std::string& path) {
  const Removed temporary(fmt::format("{}.tmp.{}", path, getpid()));
  ASSIGN_OR_RETURN(File file, CreateFile(temporary.path()));
  RETURN_IF_ERROR(CopyTo(object, file));
  RETURN_IF_ERROR(file.Sync());
  if (object.version().empty()) return file;  // nothing tells when it has changed
  RETURN_IF_ERROR(Rename(temporary.path(), path));
  ASSIGN_OR_RETURN(const std::int64_t limit, Limit());
  MakeRoom(folder, path, limit);
  return file;
}

}  // namespace

absl::StatusOr<File> OpenCopy(const std::string& name) {
  if (!IsUrl(name)) {
    ASSIGN_OR_RETURN(const int descriptor, OpenRegular(name, O_RDONLY));
    return File(descriptor, name);
  }
  RETURN_IF_ERROR(Limit().status());
  ASSIGN_OR_RETURN(const std::shared_ptr<const Object> object, Open(name));
  ASSIGN_OR_RETURN(const std::string folder, Folder());
  const std::string path =
      folder + "/" + HashHex(fmt::format("{}\n{}\n{}", name, object->version(), object->size()));
  const bool is_kept = !object->version().empty();
  if (is_kept) {
    if (absl::StatusOr<File> found = Find(path, object->size()); found.ok()) return found;
  }
  // Only one process fetches; who has waited for it finds the copy.
  const Removed lock_path(path + ".lock");
  ASSIGN_OR_RETURN(const File lock, CreateFile(lock_path.path()));
  while (flock(lock.fd(), LOCK_EX) != 0 && errno == EINTR) {
  }
  if (is_kept) {
    if (absl::StatusOr<File> found = Find(path, object->size()); found.ok()) return found;
  }
  absl::StatusOr<File> fetched = Fetch(*object, folder, path);
  if (!fetched.ok()) return WithContext(fetched.status(), fmt::format("no copy of {}", ShownPath(name)));
  return fetched;
}

}  // namespace engine::storage
