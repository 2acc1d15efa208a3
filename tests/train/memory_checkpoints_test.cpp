// Runs that go on from their hosts' memory after a failure.
#include "engine/train/memory_checkpoints.h"

#include <filesystem>

#include "engine/executor/memory_checkpoint.h"
#include "tests/train/run_testing.h"

namespace engine::train::testing {
namespace {

using executor::MemoryCheckpoint;

std::vector<std::string> KeepingSets(const std::vector<std::string>& more) {
  std::vector<std::string> sets = {"training.iterations=8",        "evaluation.interval=0",
                                   "training.micro_batch=2",       "checkpoint.memory=true",
                                   "checkpoint.memory_interval=1", "debug.faults=true"};
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

// Ends in iteration 6, as its gradients are spoilt; the state after iteration 5 is in memory.
RunResult FailInSixth(const recipe::Recipe& recipe, const std::string& out, const MemoryFiles& files) {
  absl::StatusOr<Fault> fault = ParseFault("rank=0,iteration=6,at=update,kind=nan");
  REQUIRE(fault.ok());
  return RunCaught(recipe, {.out = out, .faults = {*fault}, .memory_files = files.numbers});
}

void CheckSameEnd(const std::string& out, const std::string& whole) {
  CHECK(TimelessMetrics(out) == TimelessMetrics(whole));
  const std::string of_whole = checkpoint::IterationPath(CheckpointRoot(whole), 8);
  for (const auto& entry : std::filesystem::directory_iterator(of_whole)) {
    const std::string name = entry.path().filename();
    CHECK_MESSAGE(data::ReadFile(entry.path()) ==
                      data::ReadFile(checkpoint::IterationPath(CheckpointRoot(out), 8) + "/" + name),
                  name);
  }
}

}  // namespace

TEST_CASE(
    "checkpoints in memory: a run that failed goes on to the bits of one that did not, in every layout") {
  struct Layout {
    std::string name;
    std::int64_t ranks;
    std::vector<std::string> sets;
  };
  const Layout layouts[] = {
      {"one", 1, {}},
      {"zero1", 2, {"parallelism.dp=2", "parallelism.zero_stage=1"}},
      {"zero2", 2, {"parallelism.dp=2", "parallelism.zero_stage=2"}},
      {"zero3", 2, {"parallelism.dp=2", "parallelism.zero_stage=3"}},
      {"tp2pp2", 4, {"parallelism.tp=2", "parallelism.pp=2"}},
  };
  const TempDir folder;
  WriteDataset(folder / "text", 40);
  for (const Layout& layout : layouts) {
    INFO(layout.name);
    const recipe::Recipe recipe = RunRecipe(folder, KeepingSets(layout.sets));
    const std::string whole = folder / (layout.name + "-whole");
    const std::string out = folder / layout.name;
    const RunResult undisturbed = MustRunAndNote(recipe, whole);
    CHECK(undisturbed.notes.find("note: checkpoint.memory has no effect") != std::string::npos);
    const MemoryFiles files(layout.ranks);
    CHECK(!FailInSixth(recipe, out, files).status.ok());
    const RunResult second = RunCaught(recipe, {.out = out, .memory_files = files.numbers});
    REQUIRE_MESSAGE(second.status.ok(), Message(second.status));
    CHECK_MESSAGE(
        second.output.find("resumed from the hosts' memory after iteration 5\n") != std::string::npos,
        second.output);
    CheckSameEnd(out, whole);
  }
}

TEST_CASE("checkpoints in memory: one that some rank has not, or of another recipe, does not count") {
  const TempDir folder;
  WriteDataset(folder / "text", 40);
  const std::vector<std::string> on_disk = {"parallelism.dp=2", "checkpoint.interval=3"};
  const recipe::Recipe recipe = RunRecipe(folder, KeepingSets(on_disk));
  MustRunAndNote(recipe, folder / "whole");
  const auto end_of = [&](const char* name, const recipe::Recipe& again, const auto& change) {
    const MemoryFiles files(2);
    CHECK(!FailInSixth(recipe, folder / name, files).status.ok());
    change(files);
    const RunResult second = RunCaught(again, {.out = folder / name, .memory_files = files.numbers});
    CHECK_MESSAGE(second.status.ok(), Message(second.status));
    const size_t at = second.output.find("resumed from ");
    return at == std::string::npos ? "" : second.output.substr(at, second.output.find('\n', at) - at);
  };
  const std::string from_disk = " after iteration 3";
  // The host of rank 1 is another one.
  CHECK(end_of("lost", recipe, [](const MemoryFiles& files) {
          (void)!ftruncate(files.numbers[1], 0);
        }).ends_with(from_disk));
  CheckSameEnd(folder / "lost", folder / "whole");
  std::vector<std::string> other = on_disk;
  other.emplace_back("training.seed=77");
  CHECK(
      end_of("other", RunRecipe(folder, KeepingSets(other)), [](const MemoryFiles&) {}).ends_with(from_disk));
  CHECK(end_of("kept", recipe, [](const MemoryFiles&) {}) ==
        "resumed from the hosts' memory after iteration 5");
  CheckSameEnd(folder / "kept", folder / "whole");
}

TEST_CASE("checkpoints in memory: the older copy makes place, and a copy counts when it is whole") {
  // Copies are whole when the test lets them be.
  class Slow final : public backend::cpu::CpuBackend {
   public:
    Slow() : CpuBackend(1) {}
    absl::Status FinishSnapshot() override {
      for (int i = 0; i < 20'000 && !may_end_; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return CpuBackend::FinishSnapshot();
    }
    std::atomic<bool> may_end_ = true;
  };
  Slow backend;
  const absl::StatusOr<std::byte*> arena = backend.AllocateArena(8192);
  REQUIRE(arena.ok());
  const std::vector<executor::StatePart> parts = {
      {.copy = {.arena = *arena, .bytes = 8}, .at_once = true},
      {.copy = {.arena = *arena + 512, .bytes = 1000}, .at_once = false}};
  const std::string tag(32, 'a');
  const MemoryFiles files(1);
  const int file = files.numbers[0];
  const auto iterations = [&](const std::string& of) {
    std::vector<std::int64_t> found;
    for (const MemoryCopies::Kept& kept : MemoryCopies::In(file, of)) {
      CHECK(kept.note == fmt::format("note {}", kept.iteration));
      found.push_back(kept.iteration);
    }
    return found;
  };
  using Found = std::vector<std::int64_t>;
  CHECK(iterations(tag).empty());  // a file of no bytes
  {
    MemoryCheckpoint memory(backend, parts);
    REQUIRE(memory.Open(file, tag, -1).ok());
    CHECK(iterations(tag).empty());
    for (int iteration = 1; iteration <= 3; ++iteration) {
      (*arena)[0] = std::byte(iteration);
      (*arena)[512 + 999] = std::byte(10 + iteration);
      REQUIRE(memory.Begin({iteration, fmt::format("note {}", iteration)}).ok());
      REQUIRE(backend.FinishSnapshot().ok());
    }
    for (int i = 0; i < 20'000 && iterations(tag) != Found{2, 3}; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    backend.may_end_ = false;
    REQUIRE(memory.Begin({4, "note 4"}).ok());
    CHECK(iterations(tag) == Found{3});
    backend.may_end_ = true;
  }
  CHECK(iterations(tag) == Found{3, 4});
  CHECK(iterations("") == Found{3, 4});
  CHECK(iterations(std::string(32, 'b')).empty());
  {
    MemoryCheckpoint again(backend, parts);
    REQUIRE(again.Open(file, tag, 3).ok());
    CHECK(iterations(tag) == Found{3});
    (*arena)[0] = (*arena)[512 + 999] = std::byte(99);
    REQUIRE(again.Restore().ok());
    CHECK((*arena)[0] == std::byte(3));
    CHECK((*arena)[512 + 999] == std::byte(13));
    REQUIRE(again.Begin({4, "note 4"}).ok());
    REQUIRE(again.Begin({5, "note 5"}).ok());
    REQUIRE(again.Begin({6, "note 6"}).ok());
    CHECK(iterations(tag).front() >= 4);
  }  // its last copy is whole: the file is not made anew under it
  // Of a plan of another size nothing can stay.
  MemoryCheckpoint larger(backend, {{.copy = {.arena = *arena, .bytes = 8192}, .at_once = true}});
  REQUIRE(larger.Open(file, tag, 5).ok());
  CHECK(iterations(tag).empty());
}

}  // namespace engine::train::testing
