#include "engine/view/line_follower.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/data/temp_dir.h"

namespace engine::view {
namespace {

struct Followed {
  explicit Followed(const std::string& path) : follower(path) {}

  absl::Status Read(std::int64_t most_bytes = 1 << 30) {
    return follower.Read(
        most_bytes,
        [this] {
          lines.clear();
          ++restarts;
        },
        [this](std::string_view line) { lines.emplace_back(line); });
  }

  LineFollower follower;
  std::vector<std::string> lines;
  int restarts = 0;
};

void Append(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::app) << text;
}

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("line follower: whole lines as they come, half ones when their end does") {
  const data::TempDir folder;
  const std::string path = folder / "f";
  Followed followed(path);
  CHECK(absl::IsNotFound(followed.Read()));
  Append(path, "one\ntw");
  REQUIRE(followed.Read().ok());
  CHECK(followed.lines == Lines{"one"});
  CHECK(followed.follower.at_end());
  REQUIRE(followed.Read().ok());
  Append(path, "o\n\nthree\n");
  REQUIRE(followed.Read().ok());
  CHECK(followed.lines == Lines{"one", "two", "", "three"});
  CHECK(followed.restarts == 0);
}

TEST_CASE("line follower: a file that was cut off, cut off and grown again, or replaced is read anew") {
  const data::TempDir folder;
  const std::string path = folder / "f";
  Append(path, "one\ntwo\nthree\n");
  Followed followed(path);
  REQUIRE(followed.Read().ok());
  std::filesystem::resize_file(path, 4);
  REQUIRE(followed.Read().ok());
  CHECK(followed.lines == Lines{"one"});
  CHECK(followed.restarts == 1);
  // Longer than what was read, by the time that somebody looks.
  std::filesystem::resize_file(path, 0);
  Append(path, "uno\ndue\ntre\n");
  REQUIRE(followed.Read().ok());
  CHECK(followed.lines == Lines{"uno", "due", "tre"});
  CHECK(followed.restarts == 2);
  data::WriteFile(path, "other\nfile, longer than the first\n");
  REQUIRE(followed.Read().ok());
  CHECK(followed.lines == Lines{"other", "file, longer than the first"});
}

TEST_CASE("line follower: reads in parts, and passes over lines without end") {
  const data::TempDir folder(data::MemoryFolder());
  const std::string path = folder / "f";
  const std::string block(std::size_t{1} << 20, 'x');
  Append(path, "first\n");
  for (int i = 0; i < 17; ++i) Append(path, block);
  Append(path, "\nlast\n");
  Followed followed(path);
  REQUIRE(followed.Read(1).ok());
  CHECK(followed.lines == Lines{"first"});
  CHECK(!followed.follower.at_end());
  CHECK(followed.follower.share() == doctest::Approx(1 / 17.0).epsilon(0.01));
  while (!followed.follower.at_end()) REQUIRE(followed.Read(1).ok());
  CHECK(followed.lines == Lines{"first", "last"});
  CHECK(followed.follower.long_lines() == 1);
}

TEST_CASE("line follower: what is no regular file is refused at once") {
  const data::TempDir folder;
  std::filesystem::create_directory(folder / "f");
  Followed followed(folder / "f");
  CHECK(absl::IsInvalidArgument(followed.Read()));
}

}  // namespace engine::view
