#include "engine/base/write_file.h"

#include <doctest/doctest.h>

#include <cerrno>
#include <filesystem>

#include "tests/data/temp_dir.h"

namespace engine {

TEST_CASE("a whole file is written, or the error has the system's reason and nothing is left") {
  const data::TempDir dir;
  REQUIRE(WriteFile(dir / "file", "one").ok());
  REQUIRE(WriteFile(dir / "file", "two").ok());
  CHECK(data::ReadFile(dir / "file") == "two");
  CHECK(dir.entries() == 1);
  CHECK(Message(WriteFile(dir / "absent/file", "x")) ==
        "cannot open " + (dir / "absent/file") + ": No such file or directory");
  CHECK(Message(WriteFile("/proc/self/file", "x")).starts_with("cannot open /proc/self/file: "));
  CHECK(Message(ReplaceFile(dir / "file", Synced::kNo, [](const File& file) {
          CHECK(file.path().ends_with("/file.new"));
          return SystemError("fill", "it", ENOSPC);
        })) == "cannot fill it: No space left on device");
  CHECK(Message(ReplaceFile(dir / "file", Synced::kYes, [](const File& file) {
          char byte = 0;
          return file.ReadAt(&byte, 1, 0);
        })).starts_with(dir / "file ends at byte 0"));
  CHECK(data::ReadFile(dir / "file") == "two");
  CHECK(dir.entries() == 1);
  std::filesystem::create_directory(dir / "file.new");
  CHECK(Message(WriteFile(dir / "file", "x")) == dir / "file.new" + " is a folder, not a regular file");
  CHECK(std::filesystem::is_directory(dir / "file.new"));  // it is somebody else's
}

}  // namespace engine
