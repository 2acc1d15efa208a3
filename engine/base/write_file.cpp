#include "engine/base/write_file.h"

#include <system_error>

#include "engine/base/file_io.h"

namespace engine {

absl::Status WriteFile(const std::filesystem::path& path, const std::string& text) {
  RETURN_IF_ERROR(CheckRegularOrAbsent(path.string()));
  const std::string temporary = path.string() + ".new";
  absl::Status status = WriteWholeFile(temporary, text);
  if (status.ok()) status = Rename(temporary, path.string());
  if (!status.ok()) {
    std::error_code error;
    std::filesystem::remove(temporary, error);  // a full disk needs its bytes
  }
  return status;
}

}  // namespace engine
