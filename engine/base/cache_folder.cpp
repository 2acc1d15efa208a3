#include "engine/base/cache_folder.h"

#include <cstdlib>
#include <filesystem>

namespace engine {

std::string CacheFolder() {
  if (const char* folder = std::getenv("ENGINE_CACHE")) return folder;
  if (const char* folder = std::getenv("XDG_CACHE_HOME")) return std::filesystem::path(folder) / "engine";
  if (const char* home = std::getenv("HOME")) return std::filesystem::path(home) / ".cache" / "engine";
  return "";
}

}  // namespace engine
