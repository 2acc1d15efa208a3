#include "engine/data/tokenizer/file_view.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "engine/base/file.h"
#include "engine/base/status.h"

namespace engine::tokenizer {

absl::StatusOr<FileView> FileView::Open(const std::string& path) {
  ASSIGN_OR_RETURN(const int file, OpenRegular(path, O_RDONLY));
  struct stat status = {};
  const int failed = fstat(file, &status) != 0 ? errno : 0;
  const auto size = static_cast<std::size_t>(status.st_size);
  void* address = nullptr;
  if (failed == 0 && size > 0) address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file, 0);
  const int error = address == MAP_FAILED ? errno : failed;
  close(file);
  if (error != 0) return SystemError("cannot map", path, error);
  return FileView({static_cast<const char*>(address), size});
}

FileView::~FileView() {
  if (!bytes_.empty()) munmap(const_cast<char*>(bytes_.data()), bytes_.size());
}

}  // namespace engine::tokenizer
