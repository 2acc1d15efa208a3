// kill -9 at random moments, mostly while a checkpoint is written: the run resumes from a whole one every
// time and ends with the weights of the run that nobody disturbed.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <random>
#include <thread>

#include "engine/recipe/print.h"
#include "tests/train/run_testing.h"

namespace engine::train::testing {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

constexpr int kKills = 50;
constexpr int kIterations = 60;
constexpr const char* kLayouts[] = {"parallelism.dp=1", "parallelism.tp=2"};

// `engine run` in a process of its own, with its output in a file.
class Process {
 public:
  Process(const std::string& recipe, const std::string& out, const std::string& log) : log_(log) {
    pid_ = fork();
    if (pid_ != 0) return;
    const int file = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    execl(ENGINE_BINARY, "engine", "run", recipe.c_str(), "--out", out.c_str(), "--threads", "2", nullptr);
    _exit(127);
  }
  ~Process() { Kill(); }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  bool Running() {
    if (!ended_ && waitpid(pid_, &status_, WNOHANG) == pid_) ended_ = true;
    return !ended_;
  }
  // True if it was still running.
  bool Kill() {
    if (!Running()) return false;
    kill(pid_, SIGKILL);
    waitpid(pid_, &status_, 0);
    ended_ = true;
    return WIFSIGNALED(status_);
  }
  void MustHaveSucceeded() const {
    INFO(data::ReadFile(log_));
    REQUIRE(ended_);
    REQUIRE(WIFEXITED(status_));
    REQUIRE(WEXITSTATUS(status_) == 0);
  }

 private:
  std::string log_;
  pid_t pid_ = -1;
  int status_ = 0;
  bool ended_ = false;
};

bool IsWriting(const std::string& out) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(CheckpointRoot(out), error)) {
    if (entry.path().filename().string().starts_with(".")) return true;
  }
  return false;
}

// Sleeps until the moment to kill: of three runs two are hit a little after a checkpoint was begun, the third
// anywhere.
void WaitForMoment(const std::string& out, Process* process, std::mt19937& random) {
  const auto uniform = [&](int most) { return static_cast<int>(random() % static_cast<unsigned>(most)); };
  if (uniform(3) == 0) {
    std::this_thread::sleep_for(microseconds(uniform(300'000)));
    return;
  }
  const int writes = 1 + uniform(3);
  for (int write = 0; write < writes; ++write) {
    while (process->Running() && IsWriting(out)) std::this_thread::sleep_for(microseconds(200));
    while (process->Running() && !IsWriting(out)) std::this_thread::sleep_for(microseconds(200));
  }
  std::this_thread::sleep_for(microseconds(uniform(20'000)));
}

struct Ended {
  std::string metrics;
  std::map<std::string, std::vector<float>> tensors;
};

Ended EndOf(const std::string& out) {
  CHECK((Checkpoints(out) == std::vector<std::int64_t>{kIterations - 1, kIterations}));
  return {TimelessMetrics(out), TensorsOf(out, kIterations)};
}

}  // namespace

TEST_CASE("50 times kill -9: always resumed from a whole checkpoint, to the same weights") {
  const TempDir folder;
  WriteDataset(folder / "text", 60);
  std::mt19937 random(20);
  int kills = 0;
  int runs = 0;
  int while_writing = 0;
  while (kills < kKills) {
    const recipe::Recipe recipe =
        RunRecipe(folder, {"training.iterations=" + std::to_string(kIterations), "checkpoint.interval=1",
                           "checkpoint.keep=2", "evaluation.interval=7", "evaluation.iterations=1",
                           "model.layers=2", kLayouts[runs % 2]});
    const std::string file = folder / ("recipe" + std::to_string(runs) + ".toml");
    data::WriteFile(file, recipe::ToToml(recipe));
    const std::string calm = folder / ("calm" + std::to_string(runs));
    MustRun(recipe, calm);
    const Ended expected = EndOf(calm);

    const std::string out = folder / ("out" + std::to_string(runs++));
    for (bool done = false; !done;) {
      Process process(file, out, folder / "log");
      if (kills < kKills) WaitForMoment(out, &process, random);
      if (kills < kKills && process.Kill()) {
        ++kills;
        while_writing += IsWriting(out) ? 1 : 0;
        continue;
      }
      while (process.Running()) std::this_thread::sleep_for(microseconds(1000));
      process.MustHaveSucceeded();
      done = true;
    }
    const Ended actual = EndOf(out);
    CHECK(actual.metrics == expected.metrics);
    CHECK((actual.tensors == expected.tensors));
    CHECK(!IsWriting(out));  // what the killed ones left is removed
  }
  CHECK(kills == kKills);
  CHECK(while_writing >= kKills / 4);
}

}  // namespace engine::train::testing
