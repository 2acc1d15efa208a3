#include "engine/checkpoint/store.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "tests/checkpoint/testing.h"

namespace engine::checkpoint {
namespace {

void Damage(const std::string& path) {
  std::string text = ReadText(path);
  REQUIRE(!text.empty());
  text[text.size() / 2] ^= 1;
  WriteText(path, text);
}

std::string Newest(const std::string& root, std::vector<std::string>* reports) {
  reports->clear();
  const absl::StatusOr<std::optional<std::string>> found = FindNewestWhole(root, reports);
  REQUIRE(found.ok());
  return found->value_or("");
}

TEST_CASE("damaged newer checkpoints are reported and the one before is used") {
  const Scratch scratch;
  const std::string& root = scratch.path();
  std::vector<std::string> reports;
  CHECK(Newest(root, &reports) == "");
  CHECK(Newest(root + "/none", &reports) == "");
  Random random(9);
  for (int iteration : {10, 20, 30, 40}) REQUIRE(WriteSmall(root, iteration, 2, random).ok());
  CHECK(Newest(root, &reports) == IterationPath(root, 40));
  CHECK(reports.empty());
  Damage(IterationPath(root, 40) + "/rank_00001.h5");
  std::filesystem::remove(IterationPath(root, 30) + "/manifest.json");
  WriteText(IterationPath(root, 50), "a file");
  std::filesystem::create_directory(root + "/.writing-iteration_0000060-1");
  CHECK(Newest(root, &reports) == IterationPath(root, 20));
  REQUIRE(reports.size() == 3);
  CHECK(reports[0].find("iteration_0000050") != std::string::npos);
  CHECK(reports[1].find("iteration_0000040/rank_00001.h5 has checksum") != std::string::npos);
  CHECK(reports[2].find("iteration_0000030/manifest.json: No such file") != std::string::npos);
  CHECK(*ListIterations(root) == std::vector<std::int64_t>{10, 20, 30, 40, 50});
  WriteText(root + "/file", "");
  CHECK(Contains(ListIterations(root + "/file").status(), root + "/file"));
}

TEST_CASE("leftovers of dead processes go; a half replaced checkpoint gets its name back") {
  const Scratch scratch;
  const std::string& root = scratch.path();
  Random random(10);
  for (int iteration : {1, 2}) REQUIRE(WriteSmall(root, iteration, 1, random).ok());
  std::filesystem::rename(IterationPath(root, 2), root + "/.replaced-iteration_0000002-17");
  std::filesystem::create_directory(root + "/.replaced-iteration_0000001-17");
  std::filesystem::create_directory(root + "/.writing-iteration_0000003-17");
  std::filesystem::create_directory(root + "/.deleting-iteration_0000001-17");
  std::filesystem::create_directory(root + "/.other");
  REQUIRE(RemoveLeftovers(root).ok());
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(root))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  CHECK(names == std::vector<std::string>{".other", "iteration_0000001", "iteration_0000002"});
  std::vector<std::string> reports;
  CHECK(Newest(root, &reports) == IterationPath(root, 2));
}

TEST_CASE("pruning keeps the newest whole ones") {
  const Scratch scratch;
  const std::string& root = scratch.path();
  Random random(11);
  for (int iteration = 1; iteration <= 6; ++iteration) REQUIRE(WriteSmall(root, iteration, 1, random).ok());
  CHECK(Contains(Prune(root, 0), "the fewest is 1"));
  REQUIRE(Prune(root, 4).ok());
  CHECK(*ListIterations(root) == std::vector<std::int64_t>{3, 4, 5, 6});
  Damage(IterationPath(root, 6) + "/index.h5");                   // found by its checksum only
  std::filesystem::remove(IterationPath(root, 4) + "/index.h5");  // found on opening
  REQUIRE(Prune(root, 3).ok());
  CHECK(*ListIterations(root) == std::vector<std::int64_t>{3, 4, 5, 6});
  REQUIRE(Prune(root, 1).ok());
  CHECK(*ListIterations(root) == std::vector<std::int64_t>{5, 6});
  Damage(IterationPath(root, 5) + "/index.h5");
  REQUIRE(Prune(root, 1).ok());
  CHECK(*ListIterations(root) == std::vector<std::int64_t>{5, 6});
  CHECK(Prune(root + "/none", 2).ok());
}

// Writes, replaces and prunes without end.
[[noreturn]] void WriteForever(const std::string& root, std::int64_t iteration, std::uint64_t seed) {
  Random random(seed);
  for (;; ++iteration) {
    for (int write = 0; write < 2; ++write) {
      if (!WriteSmall(root, iteration, 2, random).ok()) _exit(1);
    }
    if (!Prune(root, 2).ok()) _exit(1);
  }
}

TEST_CASE("kill -9 at any moment leaves whole checkpoints only") {
  const Scratch scratch;
  const std::string& root = scratch.path();
  Random random(12);
  std::int64_t iteration = 1;
  int interrupted_writes = 0;
  for (int round = 0; round < 30; ++round) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) WriteForever(root, iteration, static_cast<std::uint64_t>(round));
    int status = 0;
    // The first checkpoint of all may take its time, so that there is something to lose.
    do {
      std::this_thread::sleep_for(std::chrono::microseconds(Draw(random, 500, 60000)));
      REQUIRE(waitpid(child, &status, WNOHANG) == 0);
    } while (ListIterations(root)->empty());
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    CHECK(WIFSIGNALED(status));
    for (const auto& entry : std::filesystem::directory_iterator(root)) {
      if (entry.path().filename().string().starts_with(".")) ++interrupted_writes;
    }
    REQUIRE(RemoveLeftovers(root).ok());
    std::vector<std::string> reports;
    const std::string newest = Newest(root, &reports);
    CHECK(reports.empty());
    const absl::StatusOr<Reader> reader = Reader::Open(newest);
    REQUIRE_MESSAGE(reader.ok(), Message(reader.status()));
    CheckWholeContent(*reader);
    CHECK(reader->metadata().iteration >= iteration - 1);
    iteration = reader->metadata().iteration + 1;
    for (const auto& entry : std::filesystem::directory_iterator(root)) {
      CHECK(ParseIterationName(entry.path().filename().string()));
    }
  }
  CHECK(interrupted_writes >= 10);  // or the kills hit nothing
}

}  // namespace
}  // namespace engine::checkpoint
