#include "engine/base/write_file.h"

#include "engine/base/file_io.h"

namespace engine {

absl::Status WriteFile(const std::filesystem::path& path, const std::string& text) {
  RETURN_IF_ERROR(CheckRegularOrAbsent(path.string()));
  const std::string temporary = path.string() + ".new";
  RETURN_IF_ERROR(WriteWholeFile(temporary, text));
  return Rename(temporary, path.string());
}

}  // namespace engine
