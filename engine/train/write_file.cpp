#include "engine/train/write_file.h"

#include "engine/checkpoint/file_io.h"

namespace engine::train {

absl::Status WriteFile(const std::filesystem::path& path, const std::string& text) {
  RETURN_IF_ERROR(CheckRegularOrAbsent(path.string()));
  const std::string temporary = path.string() + ".new";
  RETURN_IF_ERROR(checkpoint::WriteWholeFile(temporary, text));
  return checkpoint::Rename(temporary, path.string());
}

}  // namespace engine::train
