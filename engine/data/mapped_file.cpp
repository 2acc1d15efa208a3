#include "engine/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "engine/base/file.h"
#include "engine/base/status.h"

namespace engine::data {

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  ASSIGN_OR_RETURN(const int file, OpenRegular(path, O_RDONLY));
  struct stat info = {};
  if (fstat(file, &info) != 0) {
    const int error = errno;
    close(file);
    return SystemError("inspect", path, error);
  }
  const auto size = static_cast<std::size_t>(info.st_size);
  void* address = size == 0 ? nullptr : mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  const int error = errno;
  close(file);
  if (address == MAP_FAILED) return SystemError("map", path, error);
  return MappedFile({static_cast<const std::byte*>(address), size});
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace engine::data
