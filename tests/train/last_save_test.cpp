// The checkpoint with which a run ends, where the disk is full.
#include "engine/train/last_save.h"

#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <optional>
#include <thread>

#include "tests/data/file_size_limit.h"
#include "tests/executor/wrapped_backend.h"
#include "tests/train/run_testing.h"

namespace engine::train::testing {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kLessThanAShard = 40'000;  // bytes

recipe::Recipe LastRecipe(const TempDir& folder, const std::vector<std::string>& more = {}) {
  std::vector<std::string> sets = {"training.iterations=4", "evaluation.interval=0", "parallelism.dp=2",
                                   "training.micro_batch=2"};
  sets.insert(sets.end(), more.begin(), more.end());
  return RunRecipe(folder, sets);
}

// Iterations of checkpoints of which metrics.jsonl says so.
std::vector<int> Of(const std::string& out, const char* key) {
  std::vector<int> iterations;
  for (const nlohmann::json& line : Metrics(out)) {
    if (line.contains(key)) iterations.push_back(line[key].get<int>());
  }
  return iterations;
}

// How often a run has failed to write a checkpoint so far. Its last line may not be whole yet.
int Failures(const std::string& out) {
  if (!std::filesystem::exists(out + "/metrics.jsonl")) return 0;
  const std::string text = data::ReadFile(out + "/metrics.jsonl");
  int failures = 0;
  for (std::size_t at = 0; (at = text.find("unsaved_iteration", at)) != std::string::npos; ++at) ++failures;
  return failures;
}

// Does something beside a run, once that has failed so often to write a checkpoint.
class Beside {
 public:
  Beside(const std::string& out, int failures, std::function<void()> act)
      : thread_([this, out, failures, act = std::move(act)] {
          while (!ended_ && Failures(out) < failures) std::this_thread::sleep_for(milliseconds(5));
          if (!ended_) act();
        }) {}
  ~Beside() {
    ended_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

double SecondsOf(const std::function<void()>& act) {
  const auto start = std::chrono::steady_clock::now();
  act();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string Shards(const std::string& out) {
  const std::string folder = checkpoint::IterationPath(CheckpointRoot(out), 4);
  return data::ReadFile(folder + "/rank_00000.h5") + data::ReadFile(folder + "/rank_00001.h5");
}

}  // namespace

TEST_CASE("the last checkpoint waits for room, and is that of a run that had it") {
  const TempDir folder;
  WriteDataset(folder / "text", 40);
  MustRun(LastRecipe(folder), folder / "whole");
  // Also where those between iterations are required, which it is not.
  for (const char* more : {"checkpoint.required=false", "checkpoint.required=true"}) {
    INFO(more);
    const std::string out = folder / more;
    std::optional<data::FileSizeLimit> full(kLessThanAShard);
    RunResult result;
    {
      const Beside room(out, 1, [&] { full.reset(); });
      result = RunCaught(LastRecipe(folder, {more}), out);
    }
    REQUIRE_MESSAGE(result.status.ok(), Message(result.status));
    CHECK(result.notes.find("warning: saving the checkpoint of iteration 4: ") != std::string::npos);
    CHECK_MESSAGE(result.notes.find("it is tried again for 600 s, until 2") != std::string::npos,
                  result.notes);
    CHECK(result.notes.find(" (checkpoint.final_patience): it takes up to ") != std::string::npos);
    CHECK(result.notes.find("iB in " + out + "/checkpoints, where ") != std::string::npos);
    CHECK(result.notes.find(" are free; a second signal ends the wait\n") != std::string::npos);
    CHECK(result.notes.find("training goes on") == std::string::npos);
    CHECK(Of(out, "unsaved_iteration") == std::vector<int>{4});
    CHECK(Of(out, "saved_iteration") == std::vector<int>{4});
    CHECK(Shards(out) == Shards(folder / "whole"));
  }
}

TEST_CASE("the wait for room has an end, with the error that there would have been without it") {
  const TempDir folder;
  WriteDataset(folder / "text", 40);
  const data::FileSizeLimit full(kLessThanAShard);
  RunResult result;
  const double took = SecondsOf(
      [&] { result = RunCaught(LastRecipe(folder, {"checkpoint.final_patience=2"}), folder / "out"); });
  CHECK(Message(result.status).find("saving the checkpoint of iteration 4: ") == 0);
  CHECK(took >= 2);
  // After 0, 1 and 2 s, of which the second falls out where the pause before it ends too late.
  const std::vector<int> failed = Of(folder / "out", "unsaved_iteration");
  CHECK((failed == std::vector<int>{4, 4} || failed == std::vector<int>{4, 4, 4}));
  result = RunCaught(LastRecipe(folder, {"checkpoint.final_patience=0"}), folder / "none");
  CHECK(Message(result.status).find("saving the checkpoint of iteration 4: ") == 0);
  CHECK(Of(folder / "none", "unsaved_iteration") == std::vector<int>{4});
}

TEST_CASE("a signal that stops a run does not end the wait for room, and a second one does") {
  const TempDir folder;
  WriteDataset(folder / "text", 40);
  std::vector<executor::testing::Probe> probes(2);
  probes[0].before_launch = [](std::int64_t, const backend::KernelContext& context) {
    if (context.iteration + 1 == 3) std::raise(SIGTERM);
    return absl::OkStatus();
  };
  const data::FileSizeLimit full(kLessThanAShard);
  const std::string out = folder / "out";
  RunResult result;
  const double took = SecondsOf([&] {
    const Beside again(out, 2, [] { std::raise(SIGTERM); });
    result = RunCaught(LastRecipe(folder), out, false, executor::testing::ProbedDevice(&probes));
  });
  CHECK(Message(result.status).find("saving the checkpoint of iteration 3: ") == 0);
  CHECK(took > 1);    // the pause before the second try
  CHECK(took < 300);  // of the 600 s of checkpoint.final_patience
  CHECK(Of(out, "unsaved_iteration").size() >= 2);
}

}  // namespace engine::train::testing
