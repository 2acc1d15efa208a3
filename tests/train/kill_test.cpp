// kill -9 at random moments, mostly while a checkpoint is written: the run resumes from a whole one every
// time and ends with the weights of the run that nobody disturbed.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "engine/model/load.h"
#include "engine/recipe/print.h"
#include "tests/train/run_testing.h"

namespace engine::train::testing {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

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

// Kills so far, and how many of them hit a process that was writing a checkpoint.
struct Kills {
  int wanted = 0;
  int done = 0;
  int while_writing = 0;
};

// Runs the recipe once without disturbance and once in pieces, until so many were killed as are wanted: both end with the same
// numbers and the same tensors. The two lie in `folder`, under names with `number`.
void CompareWithCalmRun(const recipe::Recipe& recipe, const TempDir& folder, int number, std::mt19937& random,
                        Kills* kills) {
  const std::string file = folder / ("recipe" + std::to_string(number) + ".toml");
  data::WriteFile(file, recipe::ToToml(recipe));
  const std::string calm = folder / ("calm" + std::to_string(number));
  MustRun(recipe, calm);
  const Ended expected = EndOf(calm);

  const std::string out = folder / ("out" + std::to_string(number));
  for (bool done = false; !done;) {
    Process process(file, out, folder / "log");
    if (kills->done < kills->wanted) WaitForMoment(out, &process, random);
    if (kills->done < kills->wanted && process.Kill()) {
      ++kills->done;
      kills->while_writing += IsWriting(out) ? 1 : 0;
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

std::vector<std::string> KilledRun(const std::vector<std::string>& more) {
  std::vector<std::string> sets = {"training.iterations=" + std::to_string(kIterations),
                                   "checkpoint.interval=1", "checkpoint.keep=2", "evaluation.interval=7",
                                   "evaluation.iterations=1"};
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

// Mixtral's steps with a bias of the router, which the optimizer moves by a rule of its own.
recipe::Recipe ExpertsRecipe(const TempDir& folder, const std::vector<std::string>& more) {
  std::vector<std::string> sets = {
      "model.dims={ D = 16, L = 2, H = 4, K = 2, E = 4, F = 8, X = 4, T = 2, V = 257 }",
      "block.mlp.steps.router={ bias_rate = 0.01, z_loss = 0.01 }",
      "model.vocab_multiple=16",
      "data.paths=[\"" + folder / "text" + "\"]",
      "data.split=\"8,2,0\"",
      "data.sequence_length=16",
      "optimizer.learning_rate=1e-2",
      "schedule.kind=constant",
      "training.global_batch=8",
      "training.micro_batch=2",
      "logging.interval=1000"};
  sets.insert(sets.end(), more.begin(), more.end());
  const recipe::LoadResult loaded =
      model::Load(ENGINE_SOURCE_DIR "/configs/blocks/mixtral.toml", {.sets = sets, .root = ""});
  std::string errors;
  for (const Diagnostic& diagnostic : loaded.diagnostics) errors += Format(diagnostic);
  REQUIRE_MESSAGE(loaded.ok(), errors);
  return loaded.recipe;
}

// ENGINE_TEST_KILLS: how often, for a longer trial by hand.
int KillsWanted(int usual) {
  const char* const number = std::getenv("ENGINE_TEST_KILLS");
  return number != nullptr ? std::atoi(number) : usual;
}

}  // namespace

TEST_CASE("20 times kill -9: always resumed from a whole checkpoint, to the same weights") {
  const TempDir folder;
  WriteDataset(folder / "text", 60);
  std::mt19937 random(20);
  Kills kills{.wanted = KillsWanted(20)};
  for (int runs = 0; kills.done < kills.wanted; ++runs) {
    const std::vector<std::string> sets = KilledRun({"model.layers=2", kLayouts[runs % 2]});
    CompareWithCalmRun(RunRecipe(folder, sets), folder, runs, random, &kills);
  }
  CHECK(kills.while_writing >= kills.wanted / 4);
}

TEST_CASE("8 times kill -9 of a run with experts: always resumed, to the same weights") {
  const TempDir folder;
  WriteDataset(folder / "text", 60);
  std::mt19937 random(21);
  Kills kills{.wanted = KillsWanted(8)};
  const std::vector<std::string> layouts[] = {
      {"parallelism.ep=2"}, {"parallelism.ep=2", "parallelism.dp=2", "parallelism.zero_stage=1"}};
  for (int runs = 0; kills.done < kills.wanted; ++runs) {
    const std::vector<std::string> sets = KilledRun(layouts[runs % 2]);
    CompareWithCalmRun(ExpertsRecipe(folder, sets), folder, runs, random, &kills);
  }
  CHECK(kills.while_writing >= kills.wanted / 4);
}

}  // namespace engine::train::testing
