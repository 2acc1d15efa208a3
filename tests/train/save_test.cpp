// Runs that save beside training.
#include "engine/train/save.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <filesystem>
#include <mutex>
#include <thread>

#include "tests/data/file_size_limit.h"
#include "tests/executor/wrapped_backend.h"
#include "tests/train/run_testing.h"

namespace engine::train::testing {
namespace {

namespace fs = std::filesystem;
using executor::testing::Probe;
using executor::testing::ProbedDevice;

std::vector<std::string> SavingSets(const std::vector<std::string>& more = {}) {
  std::vector<std::string> sets = {"training.iterations=6",  "checkpoint.interval=2",
                                   "evaluation.interval=0",  "parallelism.dp=2",
                                   "training.micro_batch=2", "checkpoint.final_patience=0"};
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

// Copies of the state are whole as late as the test lets them be.
struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false;

  void Open() {
    const std::lock_guard<std::mutex> lock(mutex);
    open = true;
    changed.notify_all();
  }
  void Pass() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait_for(lock, std::chrono::seconds(20),
                     [&] { return open; });  // not for ever, so that a wrong run fails
  }
};

class GatedBackend final : public backend::cpu::CpuBackend {
 public:
  GatedBackend(Gate* gate, std::atomic<int>* updates) : CpuBackend(1), gate_(*gate), updates_(*updates) {}
  absl::Status AwaitSnapshot() override {
    if (++updates_ >= 4) gate_.Open();
    return CpuBackend::AwaitSnapshot();
  }
  absl::Status FinishSnapshot() override {
    RETURN_IF_ERROR(CpuBackend::FinishSnapshot());
    if (std::this_thread::get_id() != own_) gate_.Pass();
    return absl::OkStatus();
  }

 private:
  const std::thread::id own_ = std::this_thread::get_id();
  Gate& gate_;
  std::atomic<int>& updates_;
};

}  // namespace

TEST_CASE("checkpoints beside training are those of a run that waits, file by file, and so are the losses") {
  const TempDir folder;
  WriteDataset(folder / "text", 40);
  MustRun(RunRecipe(folder, SavingSets()), folder / "beside");
  MustRun(RunRecipe(folder, SavingSets({"checkpoint.background=false"})), folder / "waits");
  CHECK(TimelessMetrics(folder / "beside") == TimelessMetrics(folder / "waits"));
  for (int iteration : {2, 4, 6}) {
    for (const char* file : {"rank_00000.h5", "index.h5"}) {
      CHECK(data::ReadFile(fs::path(checkpoint::IterationPath(CheckpointRoot(folder / "beside"), iteration)) /
                           file) ==
            data::ReadFile(fs::path(checkpoint::IterationPath(CheckpointRoot(folder / "waits"), iteration)) /
                           file));
    }
  }
  std::vector<int> saved;
  for (const nlohmann::json& line : Metrics(folder / "beside")) {
    if (line.contains("saved_iteration")) saved.push_back(line["saved_iteration"].get<int>());
  }
  CHECK(saved == std::vector<int>{2, 4, 6});
}

TEST_CASE("training goes on while a checkpoint is written, and waits for it before the next") {
  const TempDir folder;
  WriteDataset(folder / "text", 40);
  const recipe::Recipe recipe = RunRecipe(folder, {"training.iterations=9", "checkpoint.interval=4",
                                                   "evaluation.interval=0", "logging.interval=1"});
  Gate gate;  // opens in the update of iteration 7: the checkpoint of iteration 4 is whole no sooner
  std::atomic<int> updates = -3;
  state::Device device = CpuDevice();
  device.make_backend = [&](std::int64_t, std::int64_t) {
    return std::make_unique<GatedBackend>(&gate, &updates);
  };
  const RunResult result = RunCaught(recipe, folder / "out", false, device);
  REQUIRE_MESSAGE(result.status.ok(), Message(result.status));
  const size_t saved = result.output.find("saved checkpoint of iteration 4 ");
  const size_t sixth = result.output.find("iteration        6/");
  REQUIRE(saved != std::string::npos);
  REQUIRE_MESSAGE(sixth != std::string::npos, result.output);
  CHECK(sixth < saved);
  for (const nlohmann::json& line : Metrics(folder / "out")) {
    if (!line.contains("saved_iteration") || line["saved_iteration"] != 4) continue;
    CHECK(line["iteration"].get<int>() >= 6);
    CHECK(line["stall_seconds"].get<double>() < line["save_seconds"].get<double>());
  }
}

TEST_CASE("a checkpoint is told of after the next iteration, and not when the next one is due") {
  const TempDir folder;
  WriteDataset(folder / "text", 40);
  const std::string out = folder / "out";
  const recipe::Recipe recipe =
      RunRecipe(folder, {"training.iterations=12", "checkpoint.interval=6", "evaluation.interval=0"});
  // Waits in updates: in that of iteration 8 until the checkpoint of iteration 6 is there, and in the next ones for a moment.
  class Waiting final : public backend::cpu::CpuBackend {
   public:
    explicit Waiting(std::string path) : CpuBackend(1), path_(std::move(path)) {}
    absl::Status AwaitSnapshot() override {
      ++updates_;
      for (int i = 0; updates_ == 8 && i < 1000 && !fs::exists(path_); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      if (updates_ > 8) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      return CpuBackend::AwaitSnapshot();
    }

   private:
    std::string path_;
    int updates_ = 0;
  };
  state::Device device = CpuDevice();
  device.make_backend = [&](std::int64_t, std::int64_t) {
    return std::make_unique<Waiting>(checkpoint::IterationPath(CheckpointRoot(out), 6));
  };
  REQUIRE(RunCaught(recipe, out, false, device).status.ok());
  std::int64_t told_after = 0;
  for (const nlohmann::json& line : Metrics(out)) {
    if (line.contains("saved_iteration") && line["saved_iteration"] == 6) told_after = line["iteration"];
  }
  CHECK(told_after >= 8);
  CHECK(told_after < 12);
}

TEST_CASE(
    "a required checkpoint that cannot be written ends the run, located, and leaves nothing by halves") {
  const TempDir folder;
  WriteDataset(folder / "text", 40);
  const std::string out = folder / "out";
  const data::FileSizeLimit small(40'000);  // bytes: less than a shard has
  const RunResult result =
      RunCaught(RunRecipe(folder, SavingSets({"training.iterations=40", "checkpoint.required=true"})), out);
  CHECK(Message(result.status).find("saving the checkpoint of iteration 2: ") == 0);
  CHECK(Message(result.status).find("rank_0000") != std::string::npos);
  CHECK(fs::is_empty(CheckpointRoot(out)));
  CHECK(result.output.find("saved checkpoint") == std::string::npos);
}

TEST_CASE("training goes on after a checkpoint that cannot be written, but does not end without one") {
  const TempDir folder;
  WriteDataset(folder / "text", 40);
  for (const char* background : {"true", "false"}) {
    INFO("background " << std::string(background));
    const std::string out = folder / background;
    const recipe::Recipe recipe =
        RunRecipe(folder, SavingSets({std::string("checkpoint.background=") + background}));
    RunResult result;
    {
      const data::FileSizeLimit small(40'000);  // bytes: less than a shard has
      result = RunCaught(recipe, out);
    }
    for (const char* text :
         {"warning: saving the checkpoint of iteration 2: ",
          "warning: saving the checkpoint of iteration 4: ", "there is no checkpoint, and training goes on"})
      CHECK_MESSAGE(result.notes.find(text) != std::string::npos, result.notes);
    CHECK(Message(result.status).find("saving the checkpoint of iteration 6: ") == 0);
    CHECK(fs::is_empty(CheckpointRoot(out)));
    std::vector<std::pair<int, int>> unsaved;
    for (const nlohmann::json& line : Metrics(out)) {
      if (line.contains("unsaved_iteration"))
        unsaved.emplace_back(line["unsaved_iteration"], line["save_failures"]);
    }
    CHECK(unsaved == std::vector<std::pair<int, int>>{{2, 1}, {4, 2}, {6, 3}});
  }
}

TEST_CASE(
    "a checkpoint that is on its way when the run is stopped is written once, and again where it failed") {
  const TempDir folder;
  WriteDataset(folder / "text", 40);
  std::vector<Probe> probes(2);
  probes[0].before_launch = [](std::int64_t, const backend::KernelContext& context) {
    if (context.iteration + 1 == 4) std::raise(SIGTERM);
    return absl::OkStatus();
  };
  const auto of = [](const std::string& out, const char* key) {
    std::vector<int> iterations;
    for (const nlohmann::json& line : Metrics(out)) {
      if (line.contains(key)) iterations.push_back(line[key].get<int>());
    }
    return iterations;
  };
  const recipe::Recipe recipe = RunRecipe(folder, SavingSets());
  const RunResult stopped = RunCaught(recipe, folder / "stopped", false, ProbedDevice(&probes));
  REQUIRE_MESSAGE(stopped.status.ok(), Message(stopped.status));
  CHECK(stopped.output.find("stopped by a signal after iteration 4") != std::string::npos);
  CHECK(of(folder / "stopped", "saved_iteration") == std::vector<int>{2, 4});
  RunResult full;
  {
    const data::FileSizeLimit small(40'000);  // bytes: less than a shard has
    full = RunCaught(recipe, folder / "full", false, ProbedDevice(&probes));
  }
  CHECK(Message(full.status).find("saving the checkpoint of iteration 4: ") == 0);
  CHECK(of(folder / "full", "unsaved_iteration") == std::vector<int>{2, 4, 4});
}

TEST_CASE(
    "memory for copies of the state is asked for where something is written beside training, and not else") {
  const TempDir folder;
  WriteDataset(folder / "text", 40);
  class NoMemory final : public backend::cpu::CpuBackend {
   public:
    NoMemory() : CpuBackend(1) {}
    absl::StatusOr<std::byte*> AllocateSnapshot(std::int64_t) override { return ResourceExhausted("asked"); }
  };
  const auto run = [&](const std::vector<std::string>& sets, const char* out) {
    state::Device device = CpuDevice();
    device.make_backend = [](std::int64_t, std::int64_t) { return std::make_unique<NoMemory>(); };
    return RunCaught(RunRecipe(folder, SavingSets(sets)), folder / out, false, device).status;
  };
  CHECK(Message(run({}, "beside")) == "asked");
  // Nothing is asked for where nothing is written beside training.
  for (const char* set : {"checkpoint.background=false", "checkpoint.interval=0", "checkpoint.interval=6"}) {
    INFO(set);
    CHECK(run({set}, set).ok());
  }
}

}  // namespace engine::train::testing
