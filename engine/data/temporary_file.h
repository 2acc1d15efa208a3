// Names of files that must not outlive what makes them.
#pragma once

#include <cstddef>
#include <string>

namespace engine::data {

// Removes the file of that name, if there is one, at the end of its life. At most 256 live at a time.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string path);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  const std::string path_;
  std::size_t slot_ = 0;
};

// From now on a signal that asks the process to end (SIGINT, SIGTERM, SIGHUP, and the like) removes the files
// of all TemporaryFiles first. It still ends the process, as the parent sees; a signal that is ignored, as
// nohup has it, stays ignored. For programs that leave these signals alone otherwise.
void RemoveTemporaryFilesOnSignals();

}  // namespace engine::data
