#include "engine/storage/copies.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <thread>

#include "engine/base/status.h"
#include "engine/storage/storage.h"
#include "tests/data/temp_dir.h"
#include "tests/storage/object_server.h"
#include "tests/storage/variable.h"

namespace engine::storage {
namespace {

namespace fs = std::filesystem;
using data::TempDir;

std::string ContentOf(const absl::StatusOr<File>& file) {
  REQUIRE_MESSAGE(file.ok(), Message(file.status()));
  std::string content(static_cast<std::size_t>(*file->Size()), '\0');
  REQUIRE(file->ReadAt(content.data(), *file->Size(), 0).ok());
  return content;
}

std::size_t Copies(const TempDir& dir) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator(dir / "objects"), fs::directory_iterator()));
}

}  // namespace

TEST_CASE("a copy is fetched once, and anew where the object has changed") {
  ObjectServer& server = TheServer();
  const TempDir dir;
  const Variable cache("ENGINE_CACHE", dir.path().c_str());
  server.Put("bucket/index", "0123456789");
  server.Requests();
  CHECK(ContentOf(OpenCopy("s3://bucket/index")) == "0123456789");
  CHECK(server.Requests().size() == 2);
  CHECK(ContentOf(OpenCopy("s3://bucket/index")) == "0123456789");
  CHECK(server.Requests().size() == 1);
  CHECK(Copies(dir) == 1);
  server.Put("bucket/index", "0123456780");
  CHECK(ContentOf(OpenCopy("s3://bucket/index")) == "0123456780");
  CHECK(Copies(dir) == 2);
  server.Put("bucket/index", "");
  CHECK(ContentOf(OpenCopy("s3://bucket/index")).empty());
}

TEST_CASE("a copy in several pieces") {
  ObjectServer& server = TheServer();
  const TempDir dir;
  const Variable cache("ENGINE_CACHE", dir.path().c_str());
  const std::string bytes = SomeBytes((std::size_t{20} << 20) + 3);
  server.Put("bucket/large", bytes);
  CHECK(ContentOf(OpenCopy("s3://bucket/large")) == bytes);
}

TEST_CASE("a copy that does not come whole leaves nothing") {
  ObjectServer& server = TheServer();
  const TempDir dir;
  const Variable cache("ENGINE_CACHE", dir.path().c_str());
  server.Put("bucket/torn index", "0123456789");
  server.Inject({{"do", "cut"}, {"bytes", 0}, {"times", 9}, {"after", 1}});
  const absl::StatusOr<File> copy = OpenCopy("s3://bucket/torn index");
  CHECK(absl::IsUnavailable(copy.status()));
  CHECK(Message(copy.status())
            .starts_with("no copy of s3://bucket/torn index: cannot read s3://bucket/torn index: GET "));
  CHECK(Copies(dir) == 0);
  TheServer();
  CHECK(absl::IsNotFound(OpenCopy("s3://bucket/missing").status()));
}

TEST_CASE("threads that want one copy fetch it once") {
  ObjectServer& server = TheServer();
  const TempDir dir;
  const Variable cache("ENGINE_CACHE", dir.path().c_str());
  server.Put("bucket/shared", "0123456789");
  server.Requests();
  std::vector<std::thread> threads;
  std::vector<absl::StatusOr<File>> files(6);
  for (absl::StatusOr<File>& file : files)
    threads.emplace_back([&file] { file = OpenCopy("s3://bucket/shared"); });
  for (std::thread& thread : threads) thread.join();
  for (const absl::StatusOr<File>& file : files) CHECK(ContentOf(file) == "0123456789");
  CHECK(server.Requests().size() == 6 + 1);
  CHECK(Copies(dir) == 1);
}

TEST_CASE("copies have a bound, and those go that were used longest ago") {
  ObjectServer& server = TheServer();
  const TempDir dir;
  const Variable cache("ENGINE_CACHE", dir.path().c_str());
  const Variable limit("ENGINE_CACHE_LIMIT", "250 B");
  const auto open = [&](const std::string& key) {
    server.Put("bucket/" + key, std::string(100, key[0]));
    CHECK(ContentOf(OpenCopy("s3://bucket/" + key)) == std::string(100, key[0]));
    std::this_thread::sleep_for(std::chrono::milliseconds(15));  // times of files are of a tick
  };
  open("a");
  open("b");
  open("a");
  CHECK(Copies(dir) == 2);
  open("c");  // b goes
  CHECK(Copies(dir) == 2);
  server.Requests();
  open("a");
  CHECK(server.Requests().size() == 1);
  open("b");
  CHECK(server.Requests().size() == 2);
  data::WriteFile(dir / "objects/left.tmp.1", "x");
  fs::last_write_time(dir / "objects/left.tmp.1", fs::file_time_type::clock::now() - std::chrono::hours(100));
  open("d");
  CHECK_FALSE(fs::exists(dir / "objects/left.tmp.1"));
}

TEST_CASE("where copies cannot lie is told") {
  ObjectServer& server = TheServer();
  server.Put("bucket/x", "0");
  const TempDir dir;
  {
    const Variable limit("ENGINE_CACHE_LIMIT", "much");
    CHECK(Message(OpenCopy("s3://bucket/x").status()) ==
          "ENGINE_CACHE_LIMIT is \"much\", and must be a size, such as 100GB");
  }
  const Variable cache("ENGINE_CACHE", nullptr);
  const Variable xdg("XDG_CACHE_HOME", nullptr);
  const Variable home("HOME", nullptr);
  CHECK(absl::IsFailedPrecondition(OpenCopy("s3://bucket/x").status()));
  data::WriteFile(dir / "file", "x");
  const Variable in_file("ENGINE_CACHE", (dir / "file").c_str());
  CHECK(Message(OpenCopy("s3://bucket/x").status())
            .starts_with("ENGINE_CACHE can name another: cannot make the folder "));
  CHECK(ContentOf(OpenCopy(dir / "file")) == "x");
}

}  // namespace engine::storage
