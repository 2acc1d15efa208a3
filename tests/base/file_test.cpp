#include "engine/base/file.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/status.h"
#include "tests/data/temp_dir.h"

namespace engine {
namespace {

std::string Opened(const std::string& path, int flags) {
  const absl::StatusOr<int> descriptor = OpenRegular(path, flags);
  if (descriptor.ok()) close(*descriptor);
  return Message(descriptor.status());
}

TEST_CASE("what is no regular file is refused at once, with what it is") {
  const data::TempDir dir;
  REQUIRE(mkfifo((dir / "pipe").c_str(), 0600) == 0);
  std::filesystem::create_directory(dir / "folder");
  std::filesystem::create_symlink("/dev/zero", dir / "zero");
  data::WriteFile(dir / "file", "abc");
  std::filesystem::create_symlink("file", dir / "link");
  for (const int flags : {O_RDONLY, O_WRONLY | O_CREAT | O_APPEND, O_RDWR | O_CREAT | O_TRUNC}) {
    CAPTURE(flags);
    CHECK(Opened(dir / "pipe", flags) == (dir / "pipe") + " is a named pipe, not a regular file");
    CHECK(Opened(dir / "folder", flags) == (dir / "folder") + " is a folder, not a regular file");
    CHECK(Opened(dir / "zero", flags) == (dir / "zero") + " is a device, not a regular file");
    CHECK(Opened(dir / "link", flags | O_NOFOLLOW) ==
          (dir / "link") + " is a symbolic link, not a regular file");
  }
  for (const char* name : {"pipe", "folder", "zero"}) {
    CHECK(Message(CheckRegularOrAbsent(dir / name)) == Opened(dir / name, O_RDONLY));
    CHECK(Message(ReadRegular(dir / name, 10).status()) == Opened(dir / name, O_RDONLY));
  }
  for (const char* name : {"file", "link", "absent"}) CHECK(CheckRegularOrAbsent(dir / name).ok());
}

TEST_CASE("a regular file is read whole, up to a bound; errors have the system's reason") {
  const data::TempDir dir;
  const std::string text(3000000, 'x');
  data::WriteFile(dir / "file", text);
  CHECK(ReadRegular(dir / "file", 3000000).value() == text);
  CHECK(Message(ReadRegular(dir / "file", 2999999).status()) ==
        (dir / "file") + " has more than 2999999 bytes");
  CHECK(Message(ReadRegular(dir / "absent", 9).status()) ==
        "cannot open " + (dir / "absent") + ": No such file or directory");
  CHECK(absl::IsNotFound(ReadRegular(dir / "absent", 9).status()));
}

}  // namespace
}  // namespace engine
