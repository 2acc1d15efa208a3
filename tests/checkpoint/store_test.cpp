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

// The retention of a run that has resumed from an iteration.
Retention Resumed(const std::string& root, int keep, std::int64_t iteration) {
  Retention retention(root, keep);
  retention.Resumed(iteration);
  return retention;
}

void SaveAndPrune(const std::string& root, std::int64_t iteration, Random& random, Retention* retention) {
  REQUIRE(WriteSmall(root, iteration, 1, random).ok());
  retention->Saved(iteration);
  const absl::Status status = retention->Prune();
  REQUIRE_MESSAGE(status.ok(), Message(status));
}

void Copy(const std::string& from, const std::string& to) {
  std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
}

using Iterations = std::vector<std::int64_t>;

TEST_CASE("pruning keeps the newest whole ones") {
  const Scratch scratch;
  const std::string& root = scratch.path();
  Random random(11);
  for (int iteration = 1; iteration <= 6; ++iteration) REQUIRE(WriteSmall(root, iteration, 1, random).ok());
  REQUIRE(Resumed(root, 0, 6).Prune().ok());  // 0: all stay
  CHECK(*ListIterations(root) == Iterations{1, 2, 3, 4, 5, 6});
  REQUIRE(Resumed(root, 4, 6).Prune().ok());
  CHECK(*ListIterations(root) == Iterations{3, 4, 5, 6});
  Damage(IterationPath(root, 6) + "/index.h5");  // found by its checksum only
  // So the run has resumed from 5. What is newer is not counted, and stays until it is replaced.
  std::filesystem::remove(IterationPath(root, 4) + "/index.h5");  // found on opening
  REQUIRE(Resumed(root, 2, 5).Prune().ok());
  CHECK(*ListIterations(root) == Iterations{3, 4, 5, 6});
  REQUIRE(Resumed(root, 1, 5).Prune().ok());
  CHECK(*ListIterations(root) == Iterations{5, 6});
  CHECK(Resumed(root + "/none", 2, 5).Prune().ok());
}

TEST_CASE("an older checkpoint whose checksums do not match does not count as kept") {
  const Scratch scratch;
  const std::string& root = scratch.path();
  Random random(13);
  for (int iteration : {1, 2, 3}) REQUIRE(WriteSmall(root, iteration, 1, random).ok());
  Damage(IterationPath(root, 2) + "/rank_00000.h5");
  Retention retention = Resumed(root, 2, 3);
  REQUIRE(retention.Prune().ok());
  CHECK(*ListIterations(root) == Iterations{1, 2, 3});
  SaveAndPrune(root, 4, random, &retention);  // with 3 there are two whole ones now
  CHECK(*ListIterations(root) == Iterations{3, 4});
}

TEST_CASE("a checkpoint of a stop takes no place of those that a run goes back to") {
  const Scratch scratch;
  const std::string& root = scratch.path();
  Random random(15);
  Retention retention(root, 2, 10);
  for (const int iteration : {10, 20, 25, 30}) SaveAndPrune(root, iteration, random, &retention);
  CHECK(*ListIterations(root) == Iterations{20, 25, 30});
  SaveAndPrune(root, 40, random, &retention);
  CHECK(*ListIterations(root) == Iterations{30, 40});
}

TEST_CASE("what this run has saved is kept, whatever other folders are called") {
  const Scratch scratch;
  const std::string& root = scratch.path();
  Random random(14);
  for (int iteration : {3, 6}) REQUIRE(WriteSmall(root, iteration, 1, random).ok());
  Copy(IterationPath(root, 6), IterationPath(root, 99));  // not of iteration 99
  Copy(IterationPath(root, 6), IterationPath(root, 1));
  Copy(IterationPath(root, 6), IterationPath(root, 6) + ".bak");
  std::vector<std::string> reports;
  CHECK(Newest(root, &reports) == IterationPath(root, 6));
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].find("named for iteration 99, but its manifest is of iteration 6") != std::string::npos);
  Retention retention = Resumed(root, 1, 6);
  SaveAndPrune(root, 7, random, &retention);
  CHECK(*ListIterations(root) == Iterations{1, 7, 99});
  SaveAndPrune(root, 8, random, &retention);
  CHECK(*ListIterations(root) == Iterations{1, 8, 99});
  // A true one of another run, put there meanwhile: newer by its name, but not by age in this run.
  const Scratch other;
  for (int iteration : {9, 50}) {
    REQUIRE(WriteSmall(other.path(), iteration, 1, random).ok());
    Copy(IterationPath(other.path(), iteration), IterationPath(root, iteration));
  }
  SaveAndPrune(root, 10, random, &retention);
  CHECK(*ListIterations(root) == Iterations{1, 10, 50, 99});
  CHECK(std::filesystem::exists(IterationPath(root, 6) + ".bak/manifest.json"));
}

TEST_CASE("among those kept, a folder from elsewhere does not stand for one that this run has saved") {
  const Scratch scratch;
  const std::string& root = scratch.path();
  Random random(15);
  Retention retention(root, 2);
  SaveAndPrune(root, 10, random, &retention);
  SaveAndPrune(root, 20, random, &retention);
  REQUIRE(WriteSmall(root, 15, 1, random).ok());
  REQUIRE(retention.Prune().ok());
  CHECK(*ListIterations(root) == Iterations{10, 15, 20});
  SaveAndPrune(root, 30, random, &retention);
  CHECK(*ListIterations(root) == Iterations{20, 30});
}

TEST_CASE("what a run has gone back behind stays until it saves again, and is deleted then") {
  const Scratch scratch;
  const std::string& root = scratch.path();
  Random random(17);
  REQUIRE(WriteSmall(root, 99, 1, random).ok());  // somebody's copy
  for (const int keep : {0, 2}) {
    Retention retention(root, keep);
    for (const int iteration : {4, 6, 8, 12}) {
      REQUIRE(WriteSmall(root, iteration, 1, random).ok());
      retention.Saved(iteration);
    }
    Copy(IterationPath(root, 8), IterationPath(root, 7));
    REQUIRE(retention.WentBack(4).ok());
    CHECK(*ListIterations(root) == Iterations{4, 6, 7, 8, 12, 99});
    SaveAndPrune(root, 8, random, &retention);
    CHECK(*ListIterations(root) == Iterations{4, 7, 8, 99});
    SaveAndPrune(root, 12, random, &retention);
    CHECK(*ListIterations(root) == (keep == 0 ? Iterations{4, 7, 8, 12, 99} : Iterations{7, 8, 12, 99}));
    // To the first weights, of no checkpoint.
    REQUIRE(retention.WentBack(0).ok());
    SaveAndPrune(root, 4, random, &retention);
    CHECK(*ListIterations(root) == Iterations{4, 7, 99});
    std::filesystem::remove_all(IterationPath(root, 7));
  }
}

TEST_CASE("a checkpoint saved where one of another iteration stands puts that aside") {
  const Scratch scratch;
  const std::string& root = scratch.path();
  Random random(16);
  REQUIRE(WriteSmall(root, 6, 1, random).ok());
  for (int round = 1; round <= 2; ++round) {
    std::filesystem::remove_all(IterationPath(root, 9));
    Copy(IterationPath(root, 6), IterationPath(root, 9));
    REQUIRE(WriteSmall(root, 9, 1, random).ok());
    CHECK(Reader::Open(IterationPath(root, 9)).ok());
    CHECK(*ReadIteration(OtherPath(root, 9, round)) == 6);
  }
  CHECK(*ListIterations(root) == Iterations{6, 9});
}

// Bytes that this process has asked read calls for so far.
std::int64_t BytesRead() {
  std::ifstream file("/proc/self/io");
  std::string name;
  std::int64_t bytes = -1;
  file >> name >> bytes;
  REQUIRE(name == "rchar:");
  return bytes;
}

TEST_CASE("pruning after a save reads manifests, not data; what was there before is read once") {
  const Scratch scratch;
  const std::string& root = scratch.path();
  constexpr std::int64_t kBytes = std::int64_t{8} << 20;
  const std::vector<TensorInfo> tensors = {{"w", {kBytes}, DType::kU8}};
  const std::vector<char> content(kBytes, 'x');
  const auto save = [&](std::int64_t iteration) {
    absl::StatusOr<Writer> writer = Writer::Begin(root, SmallMetadata(iteration), tensors);
    REQUIRE(writer.ok());
    REQUIRE(writer->WriteShard(0, {{0, WholeBox(tensors[0].shape), content.data()}}).ok());
    REQUIRE(writer->Commit().ok());
  };
  for (std::int64_t iteration : {1, 2, 3}) save(iteration);
  Retention retention = Resumed(root, 2, 3);
  const auto read_by_prune = [&] {
    const std::int64_t before = BytesRead();
    REQUIRE(retention.Prune().ok());
    return BytesRead() - before;
  };
  CHECK(read_by_prune() > kBytes);  // 2 stays, and 1 goes because it does
  CHECK(read_by_prune() < kBytes / 8);
  for (std::int64_t iteration : {4, 5, 6}) {
    save(iteration);
    retention.Saved(iteration);
    CHECK(read_by_prune() < kBytes / 8);
    CHECK(*ListIterations(root) == Iterations{iteration - 1, iteration});
  }
}

// Writes, replaces and prunes without end.
[[noreturn]] void WriteForever(const std::string& root, std::int64_t iteration, std::uint64_t seed) {
  Random random(seed);
  Retention retention(root, 2);
  for (;; ++iteration) {
    for (int write = 0; write < 2; ++write) {
      if (!WriteSmall(root, iteration, 2, random).ok()) _exit(1);
    }
    retention.Saved(iteration);
    if (!retention.Prune().ok()) _exit(1);
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
