#include "engine/train/write_file.h"

#include <fstream>

namespace engine::train {

absl::Status WriteFile(const std::filesystem::path& path, const std::string& text) {
  const std::filesystem::path temporary = path.string() + ".new";
  {
    std::ofstream out(temporary, std::ios::binary);
    out << text;
    if (!out.flush()) return Unavailable("{}: cannot write", temporary.string());
  }
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error) return Unavailable("{}: cannot write: {}", path.string(), error.message());
  return absl::OkStatus();
}

}  // namespace engine::train
