#include "engine/recipe/shipped.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "engine/base/status.h"
#include "engine/recipe/source.h"

namespace engine::recipe {
namespace {

namespace fs = std::filesystem;

fs::path Inside(std::string_view name) {
  return fs::path(name.substr(kShippedPrefix.size())).lexically_normal();
}

// CMake notes in a build folder which tree it was configured for; empty where this is none.
std::string SourceTreeOf(const fs::path& build_folder) {
  constexpr std::string_view kKey = "CMAKE_HOME_DIRECTORY:INTERNAL=";
  std::ifstream cache(build_folder / "CMakeCache.txt");
  for (std::string line; std::getline(cache, line);) {
    if (line.starts_with(kKey)) return line.substr(kKey.size());
  }
  return "";
}

}  // namespace

std::vector<std::string> ShippedFolders() {
  if (const char* given = std::getenv("ENGINE_DATA"); given != nullptr && *given != '\0') return {given};
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) return {};
  const fs::path folder = program.parent_path();
  std::vector<std::string> folders = {(folder.parent_path() / "share" / "engine").string()};
  if (const std::string tree = SourceTreeOf(folder); !tree.empty()) folders.push_back(tree);
  return folders;
}

absl::StatusOr<std::string> FindShipped(const std::string& name) {
  const fs::path inside = Inside(name);
  if (inside.empty() || inside.is_absolute() || *inside.begin() == ".." || inside == ".") {
    return InvalidArgument(
        "'{}' names no file of the installation; write engine:configs/… or engine:recipes/…",
        ShownPath(name));
  }
  const std::vector<std::string> folders = ShippedFolders();
  std::string looked_in;
  for (const std::string& folder : folders) {
    std::error_code error;
    const fs::path path = fs::path(folder) / inside;
    if (fs::exists(path, error)) return path.string();
    looked_in += fmt::format("{}'{}'", looked_in.empty() ? "" : " or ", ShownPath(folder));
  }
  return NotFound("'{}' is not in {} (ENGINE_DATA=FOLDER names another)", ShownPath(name), looked_in);
}

std::string PathFrom(const std::string& path, const std::string& entry) {
  if (IsShipped(entry)) return entry;
  if (!IsShipped(path)) return (fs::path(path).parent_path() / entry).string();
  const fs::path next = Inside(path).parent_path() / entry;
  return next.is_absolute() ? next.string() : std::string(kShippedPrefix) + next.string();
}

std::string NormalPath(const std::string& path) {
  if (!IsShipped(path)) return fs::path(path).lexically_normal().string();
  return std::string(kShippedPrefix) + Inside(path).string();
}

}  // namespace engine::recipe
