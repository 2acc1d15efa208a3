// A folder that lives as long as a test case, and small file helpers.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace engine::data {

class TempDir {
 public:
  TempDir() : TempDir(std::filesystem::temp_directory_path()) {}
  explicit TempDir(const std::filesystem::path& parent) {
    std::string pattern = (parent / "engine_data_XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  std::size_t entries() const {
    const auto begin = std::filesystem::directory_iterator(path_);
    return static_cast<std::size_t>(std::distance(begin, std::filesystem::directory_iterator()));
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Where there is such a thing, a folder in memory, for a few MiB: what is synced there need not wait for a disk.
inline std::filesystem::path MemoryFolder() {
  const std::filesystem::path memory = "/dev/shm";
  return std::filesystem::is_directory(memory) ? memory : std::filesystem::temp_directory_path();
}

inline void WriteFile(const std::string& path, const std::string& contents) {
  std::filesystem::remove(
      path);  // a file that is emptied and written again is put on the disk at once by ext4
  std::ofstream(path, std::ios::binary) << contents;
}

inline std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline std::string TestData(const std::string& name) { return ENGINE_SOURCE_DIR "/tests/data/" + name; }

}  // namespace engine::data
