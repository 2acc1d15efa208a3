#include "engine/data/mapped_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "engine/base/status.h"
#include "engine/storage/copies.h"

namespace engine::data {

void StartReading(std::span<const std::byte> mapped) {
  static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t into =
      reinterpret_cast<std::uintptr_t>(mapped.data()) % page;  // the page that it begins in
  const std::size_t size = into + mapped.size();
  if (size > page) madvise(const_cast<std::byte*>(mapped.data() - into), size, MADV_WILLNEED);
}

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& name, Access access) {
  ASSIGN_OR_RETURN(const File file, storage::OpenCopy(name));
  ASSIGN_OR_RETURN(const std::int64_t bytes, file.Size());
  const auto size = static_cast<std::size_t>(bytes);
  void* address = size == 0 ? nullptr : mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd(), 0);
  if (address == MAP_FAILED) return SystemError("map", file.path(), errno);
  if (access == Access::kRandom && size > 0) madvise(address, size, MADV_RANDOM);  // which may be refused
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
