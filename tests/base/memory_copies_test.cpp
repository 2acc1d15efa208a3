// Copies of a state in a file in memory.
#include "engine/base/memory_copies.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace engine {
namespace {

const std::string kTag(MemoryCopies::kTagBytes, 't');
constexpr std::int64_t kCopyBytes = 5000;

// A file in memory, closed at the end.
struct MemoryFile {
  ~MemoryFile() { close(number); }
  const int number = memfd_create("copies", MFD_CLOEXEC);
};

void Keep(int file, std::int64_t iteration) {
  absl::StatusOr<MemoryCopies> copies = MemoryCopies::Open(file, kTag, kCopyBytes);
  REQUIRE(copies.ok());
  copies->Finish(copies->Begin({iteration, "a note"}));
}

}  // namespace

TEST_CASE("copies in memory: a file that is cut at any place has no copy, or the same") {
  const MemoryFile file;
  CHECK(MemoryCopies::In(file.number).empty());
  CHECK(MemoryCopies::In(-1).empty());  // no file
  Keep(file.number, 3);
  const std::vector<MemoryCopies::Kept> found = MemoryCopies::In(file.number, kTag);
  REQUIRE(found.size() == 1);
  CHECK(found[0].iteration == 3);
  CHECK(found[0].note == "a note");
  for (const std::int64_t bytes : {MemoryCopies::FileBytes(kCopyBytes), std::int64_t{4096}}) {
    REQUIRE(ftruncate(file.number, bytes) == 0);
    CHECK(MemoryCopies::In(file.number, kTag).size() == 1);
  }
  for (const std::int64_t bytes : {1000, 33, 0}) {
    REQUIRE(ftruncate(file.number, bytes) == 0);
    CHECK(MemoryCopies::In(file.number, kTag).empty());
  }
}

// A page that was mapped would end the process with SIGBUS.
TEST_CASE("copies in memory: a file that is cut while it is read ends nobody") {
  const MemoryFile file;
  std::atomic<bool> ends = false;
  std::thread cutter([&] {
    while (!ends) {
      Keep(file.number, 3);
      (void)!ftruncate(file.number, 0);
    }
  });
  std::size_t most = 0;
  for (int i = 0; i < 20'000; ++i) most = std::max(most, MemoryCopies::In(file.number, kTag).size());
  ends = true;
  cutter.join();
  CHECK(most <= 1);
}

}  // namespace engine
