#include "engine/data/file_stream.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>
#include <vector>

#include "engine/base/status.h"
#include "engine/data/fingerprint.h"
#include "engine/storage/storage.h"

namespace engine::data {

absl::StatusOr<FileStamp> StampOf(const std::string& path) {
  if (storage::IsUrl(path)) {
    ASSIGN_OR_RETURN(const std::shared_ptr<const storage::Object> object, storage::Open(path));
    Hasher version;
    version.Update(object->version());
    constexpr std::size_t kDigits = 15;  // of 4 bits: a number that is not negative
    return FileStamp{.bytes = object->size(),
                     .changed_ns = std::stoll(version.HexDigest().substr(0, kDigits), nullptr, 16)};
  }
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return SystemError("inspect", path, errno);
  constexpr std::int64_t kNanoseconds = 1'000'000'000;
  return FileStamp{.bytes = info.st_size,
                   .changed_ns = info.st_mtim.tv_sec * kNanoseconds + info.st_mtim.tv_nsec};
}

absl::StatusOr<FileStream> FileStream::Open(const std::string& path) {
  if (storage::IsUrl(path)) {
    ASSIGN_OR_RETURN(std::shared_ptr<const storage::Object> object, storage::Open(path));
    return FileStream(storage::Stream(std::move(object)));
  }
  ASSIGN_OR_RETURN(const int descriptor, OpenRegular(path, O_RDONLY));
  posix_fadvise(descriptor, 0, 0, POSIX_FADV_SEQUENTIAL);
  return FileStream(File(descriptor, path));
}

absl::StatusOr<std::size_t> FileStream::ReadSome(char* out, std::size_t bytes) {
  if (remote_) return remote_->Read(out, bytes);
  for (;;) {
    const ssize_t got = pread(file_.fd(), out, bytes, at_);
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno != EINTR) return SystemError("read", path(), errno);
  }
}

absl::StatusOr<std::size_t> FileStream::Read(char* out, std::size_t bytes) {
  std::size_t done = 0;
  while (done < bytes) {
    ASSIGN_OR_RETURN(const std::size_t got, ReadSome(out + done, bytes - done));
    if (got == 0) break;
    hasher_->Update(out + done, got);
    done += got;
    at_ += static_cast<std::int64_t>(got);
  }
  return done;
}

std::string FileStream::Fingerprint() const { return FingerprintOfAll(at_, hasher_->HexDigest()); }

absl::StatusOr<std::string> FingerprintOfFile(const std::string& path, std::int64_t bytes) {
  constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;
  ASSIGN_OR_RETURN(FileStream stream, FileStream::Open(path));
  std::vector<char> block(kBlockBytes);
  std::size_t got = 1;
  while (got > 0 && stream.at() < bytes) {
    const std::int64_t wanted = std::min(kBlockBytes, bytes - stream.at());
    ASSIGN_OR_RETURN(got, stream.Read(block.data(), static_cast<std::size_t>(wanted)));
  }
  return stream.Fingerprint();
}

}  // namespace engine::data
