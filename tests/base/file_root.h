// A folder that stands for the root of a file system: for what reads /proc and /sys.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/data/temp_dir.h"

namespace engine {

class FileRoot {
 public:
  // Writes a file, in place of one that was there.
  void Add(const std::string& file, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(path() + file).parent_path());
    std::ofstream(path() + file) << text;
  }
  std::string path() const { return folder_ / "root"; }

 private:
  data::TempDir folder_;
};

}  // namespace engine
