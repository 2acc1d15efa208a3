#include "engine/base/write_file.h"

#include <doctest/doctest.h>

#include "tests/data/temp_dir.h"

namespace engine {

TEST_CASE("a whole file is written, or the error has the system's reason and nothing is left") {
  const data::TempDir dir;
  REQUIRE(WriteFile(dir / "file", "one").ok());
  REQUIRE(WriteFile(dir / "file", "two").ok());
  CHECK(data::ReadFile(dir / "file") == "two");
  CHECK(dir.entries() == 1);
  CHECK(Message(WriteFile(dir / "absent/file", "x")) ==
        "cannot open " + (dir / "absent/file.new") + ": No such file or directory");
  CHECK(Message(WriteFile("/proc/self/file", "x")).starts_with("cannot open /proc/self/file.new: "));
}

}  // namespace engine
