// Runs that meet bad numbers and do what [guard] says, compared bit by bit with runs in which the same was said by hand, with
// guard.skip_iterations. What is bad is put into the numbers that clip_factor reads.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <limits>
#include <map>
#include <thread>
#include <utility>

#include "engine/base/memory_copies.h"
#include "engine/train/outcome.h"
#include "tests/train/run_testing.h"

namespace engine::train::testing {
namespace {

enum class Injected { kNan, kNanOnce, kLossSpike, kNormSpike, kStop, kFail, kFailAgain };

// What happens in which iterations, from 1.
using Injections = std::map<std::int64_t, Injected>;

class FaultyClip final : public backend::LaunchAround {
 public:
  FaultyClip(std::unique_ptr<backend::Launch> inner, double* scalars, const Injections& faults)
      : LaunchAround(std::move(inner)), scalars_(scalars), faults_(faults) {}
  absl::Status Run(const backend::KernelContext& context) override {
    const auto found = faults_.find(static_cast<std::int64_t>(context.iteration) + 1);
    if (found == faults_.end()) return LaunchAround::Run(context);
    switch (found->second) {
      case Injected::kNanOnce:
        if (std::exchange(came_, true)) break;
        [[fallthrough]];
      case Injected::kNan:  // of which the update makes weights and moments that are none
        scalars_[0] = scalars_[1] = std::numeric_limits<double>::quiet_NaN();
        break;
      case Injected::kLossSpike:
        scalars_[0] *= 10;
        break;
      case Injected::kNormSpike:
        scalars_[1] *= 1e4;
        break;
      case Injected::kStop:
        std::raise(SIGTERM);
        break;
      case Injected::kFailAgain:  // when it is trained once more
        if (!std::exchange(came_, true)) break;
        [[fallthrough]];
      case Injected::kFail:
        return Unavailable("this rank has failed");
    }
    return LaunchAround::Run(context);
  }

 private:
  double* scalars_;
  const Injections& faults_;
  bool came_ = false;
};

// As a GPU does, it lets the host start an iteration before it says how the last one ended.
class FaultyBackend : public backend::cpu::CpuBackend {
 public:
  FaultyBackend(bool asynchronous, const Injections& faults)
      : CpuBackend(1), asynchronous_(asynchronous), faults_(faults) {}
  bool asynchronous() const override { return asynchronous_; }
  absl::StatusOr<std::unique_ptr<backend::Launch>> Prepare(backend::LaunchArgs args) override {
    const bool clips = args.instruction->kernel() == "clip_factor";
    double* const scalars = clips ? args.inputs[0].as<double>() : nullptr;
    ASSIGN_OR_RETURN(std::unique_ptr<backend::Launch> launch, CpuBackend::Prepare(std::move(args)));
    if (!clips) return launch;
    return std::make_unique<FaultyClip>(std::move(launch), scalars, faults_);
  }

 private:
  bool asynchronous_;
  const Injections& faults_;
};

state::Device FaultyDevice(const Injections& faults, bool asynchronous = true) {
  state::Device device = CpuDevice();
  device.make_backend = [asynchronous, &faults](std::int64_t, std::int64_t) {
    return std::make_unique<FaultyBackend>(asynchronous, faults);
  };
  return device;
}

constexpr std::int64_t kLast = 12;

class GuardFolder : public TempDir {
 public:
  GuardFolder() { WriteDataset(*this / "text", 60); }

  // A checkpoint every four iterations; a rate that differs in each.
  recipe::Recipe Recipe(const std::vector<std::string>& sets) const {
    std::vector<std::string> all = {"training.iterations=12", "training.micro_batch=1",
                                    "schedule.kind=cosine",   "schedule.warmup_samples=16",
                                    "parallelism.dp=2",       "checkpoint.interval=4",
                                    "evaluation.interval=3"};
    all.insert(all.end(), sets.begin(), sets.end());
    return RunRecipe(*this, all);
  }

  // The run in which `ranges` are left out by hand.
  void RunByHand(const std::string& ranges) const {
    MustRun(Recipe({"guard.skip_iterations=[\"" + ranges + "\"]"}), *this / "by hand");
  }
};

RunResult RunFaulty(const recipe::Recipe& recipe, const std::string& out, const Injections& faults,
                    bool asynchronous = true) {
  return RunCaught(recipe, out, false, FaultyDevice(faults, asynchronous));
}

// The last checkpoint, and all lines of metrics.jsonl but those that say that a run went back.
void CheckSame(const std::string& out, const std::string& expected) {
  CHECK((TensorsOf(out, kLast) == TensorsOf(expected, kLast)));
  std::string lines;
  for (std::string rest = TimelessMetrics(out); !rest.empty(); rest.erase(0, rest.find('\n') + 1)) {
    const std::string line = rest.substr(0, rest.find('\n') + 1);
    if (line.find("bad_iteration") == std::string::npos) lines += line;
  }
  CHECK(lines == TimelessMetrics(expected));
}

std::vector<nlohmann::json> Returns(const std::string& out) {
  std::vector<nlohmann::json> lines;
  for (nlohmann::json& line : Metrics(out)) {
    if (line.contains("bad_iteration")) lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace

TEST_CASE("guard: after a loss that is not finite a run goes back, and on behind it") {
  const GuardFolder folder;
  folder.RunByHand("5-7");
  const recipe::Recipe recipe = folder.Recipe({"guard.on_nonfinite=rewind"});
  for (const bool asynchronous : {false, true}) {
    CAPTURE(asynchronous);
    const std::string out = folder / (asynchronous ? "beside" : "in turn");
    const RunResult result = RunFaulty(recipe, out, {{7, Injected::kNan}}, asynchronous);
    REQUIRE_MESSAGE(result.status.ok(), Message(result.status));
    CHECK(Contains(
        result.output,
        "\niteration 7: loss nan and gradient norm nan; back to iteration 4, leaving out iterations 5 "
        "to 7 (rewind 1 of at most 3)\n"));
    CHECK(Contains(result.output, "\niterations 5 to 7 are left out\n"));
    CheckSame(out, folder / "by hand");
    REQUIRE(Returns(out).size() == 1);
    CHECK(Returns(out)[0]["iteration"] == 4);
    CHECK(Returns(out)[0]["bad_iteration"] == 7);
    CHECK(Returns(out)[0]["rewinds"] == 1);
  }
}

TEST_CASE("guard: what a run leaves out by hand is counted, consumed, and no step") {
  const GuardFolder folder;
  folder.RunByHand("5-7");
  std::vector<std::int64_t> left_out;
  for (const nlohmann::json& line : Metrics(folder / "by hand")) {
    if (!line.contains("left_out_iterations")) continue;
    left_out.push_back(line["iteration"]);
    CHECK(line["left_out_iterations"] == std::ssize(left_out));
  }
  CHECK((left_out == std::vector<std::int64_t>{5, 6, 7}));
  const std::vector<nlohmann::json> trained = IterationMetrics(folder / "by hand");
  REQUIRE(trained.size() == 9);
  CHECK(trained[4]["iteration"] == 8);
  CHECK(trained[4]["consumed_samples"] == 8 * 8);
  const auto reader =
      checkpoint::Reader::Open(checkpoint::IterationPath(CheckpointRoot(folder / "by hand"), kLast));
  REQUIRE(reader.ok());
  CHECK(reader->metadata().optimizer_steps == 9);
  CHECK(reader->metadata().schedule_samples == 9 * 8);
  CHECK(reader->metadata().consumed_samples == 12 * 8);
  // Up to there it is the run that leaves nothing out, and then another.
  MustRun(folder.Recipe({}), folder / "plain");
  CHECK((TensorsOf(folder / "plain", 4) == TensorsOf(folder / "by hand", 4)));
  CHECK_FALSE((TensorsOf(folder / "plain", 8) == TensorsOf(folder / "by hand", 8)));
}

TEST_CASE("guard: further back, and further on") {
  struct Case {
    std::vector<std::string> sets;
    Injections faults;
    const char* by_hand;
  };
  for (const Case& row : {
           Case{{"guard.skip_batches=2"}, {{6, Injected::kNan}}, "5-8"},
           Case{{"guard.rewind_iterations=3"}, {{6, Injected::kNan}}, "1-6"},  // before the first checkpoint
           Case{{"guard.rewind_iterations=5"}, {{9, Injected::kNan}}, "5-9"},
           Case{{"guard.skip_batches=100"}, {{10, Injected::kNan}}, "9-200"},
           Case{{}, {{3, Injected::kNan}, {6, Injected::kNan}}, "1-3\", \"5-6"},
       }) {
    CAPTURE(row.by_hand);
    const GuardFolder folder;
    folder.RunByHand(row.by_hand);
    std::vector<std::string> sets = row.sets;
    sets.emplace_back("guard.on_nonfinite=rewind");
    const RunResult result = RunFaulty(folder.Recipe(sets), folder / "run", row.faults);
    REQUIRE_MESSAGE(result.status.ok(), Message(result.status));
    CHECK(Returns(folder / "run").size() == row.faults.size());
    CheckSame(folder / "run", folder / "by hand");
  }
}

TEST_CASE("guard: inputs that were read ahead are those of the next iteration that is trained") {
  const GuardFolder folder;
  folder.RunByHand("5-7");  // with an evaluation between
  const RunResult result = RunFaulty(folder.Recipe({"guard.skip_iterations=[\"5-7\"]"}), folder / "run", {});
  REQUIRE_MESSAGE(result.status.ok(), Message(result.status));
  CheckSame(folder / "run", folder / "by hand");
}

TEST_CASE("guard: a run goes back to a checkpoint that was still being written") {
  // Copies of the state take their time, on the thread that writes them.
  class Slow final : public FaultyBackend {
   public:
    using FaultyBackend::FaultyBackend;
    absl::Status FinishSnapshot() override {
      if (std::this_thread::get_id() != own_) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      return FaultyBackend::FinishSnapshot();
    }

   private:
    const std::thread::id own_ = std::this_thread::get_id();
  };
  const GuardFolder folder;
  folder.RunByHand("5-6");
  const Injections faults = {{6, Injected::kNan}};
  state::Device device = CpuDevice();
  device.make_backend = [&faults](std::int64_t, std::int64_t) {
    return std::make_unique<Slow>(true, faults);
  };
  const RunResult result =
      RunCaught(folder.Recipe({"guard.on_nonfinite=rewind"}), folder / "run", false, device);
  REQUIRE_MESSAGE(result.status.ok(), Message(result.status));
  CHECK(Contains(result.output, "back to iteration 4, leaving out iterations 5 to 6 "));
  CheckSame(folder / "run", folder / "by hand");
}

TEST_CASE("guard: a checkpoint behind the one that a run goes back to stays until there is another") {
  const GuardFolder folder;
  const recipe::Recipe recipe = folder.Recipe({"guard.on_nonfinite=rewind", "checkpoint.keep=0"});
  REQUIRE(RunFaulty(recipe, folder / "run", {{6, Injected::kStop}}).status.ok());
  REQUIRE(Checkpoints(folder / "run").back() == 6);
  // Back from 7 to 4, as the undisturbed run would.
  REQUIRE(RunFaulty(recipe, folder / "run", {{7, Injected::kNan}}).status.ok());
  CHECK((Checkpoints(folder / "run") == std::vector<std::int64_t>{4, 8, 12}));
}

TEST_CASE("guard: a spike is left out alone, and the run is the same before and behind it") {
  struct Case {
    std::vector<std::string> sets;
    Injected fault;
    const char* why;
  };
  for (const Case& row : {
           Case{{"guard.spike_loss=50"}, Injected::kLossSpike, "more than 50 standard deviations of"},
           Case{{"guard.spike_loss=0", "guard.spike_grad_norm=20"},
                Injected::kNormSpike,
                "more than 20 times"},
       }) {
    CAPTURE(row.why);
    const GuardFolder folder;
    folder.RunByHand("7");
    std::vector<std::string> sets = row.sets;
    sets.insert(sets.end(), {"guard.on_spike=skip", "guard.spike_window=3"});
    const RunResult result = RunFaulty(folder.Recipe(sets), folder / "run", {{7, row.fault}});
    REQUIRE_MESSAGE(result.status.ok(), Message(result.status));
    CHECK(Contains(result.output, row.why));
    CheckSame(folder / "run", folder / "by hand");
  }
}

TEST_CASE("guard: an update whose gradients are not finite is left out where it is") {
  const GuardFolder folder;
  const RunResult result =
      RunFaulty(folder.Recipe({"guard.on_nonfinite=skip"}), folder / "run", {{7, Injected::kNan}});
  REQUIRE_MESSAGE(result.status.ok(), Message(result.status));
  CHECK(Returns(folder / "run").empty());
  CHECK(IterationMetrics(folder / "run")[6]["nan_iterations"] == 1);
  CHECK(IterationMetrics(folder / "run")[11]["skipped_iterations"] == 1);
  folder.RunByHand("7");
  CHECK((TensorsOf(folder / "run", kLast) == TensorsOf(folder / "by hand", kLast)));
}

TEST_CASE("guard: a run of which every update is skipped ends") {
  const GuardFolder folder;
  const recipe::Recipe recipe =
      folder.Recipe({"guard.on_nonfinite=skip", "guard.max_skips=3", "checkpoint.interval=2"});
  // Not by three that are no row, and by three that are one, whatever was saved between.
  const Injections faults = {
      {1, Injected::kNan}, {3, Injected::kNan}, {4, Injected::kNan}, {5, Injected::kNan}};
  for (int attempt = 1; attempt <= 2; ++attempt) {
    const RunResult result = RunFaulty(recipe, folder / "run", faults);
    CHECK(
        Contains(std::string(Message(result.status)),
                 "iteration 5: its update was skipped, and so were those of all of the last 3 iterations, "));
    CHECK(absl::IsDataLoss(result.status));
    CHECK(IterationMetrics(folder / "run").size() == 5);
    CHECK((Checkpoints(folder / "run") == std::vector<std::int64_t>{2}));
  }
  CHECK(RunFaulty(folder.Recipe({"guard.on_nonfinite=skip", "guard.max_skips=0"}), folder / "any", faults)
            .status.ok());
}

TEST_CASE("guard: weights that may be spoilt take no checkpoint's place") {
  const GuardFolder folder;
  const recipe::Recipe recipe = folder.Recipe({"guard.on_nonfinite=skip", "checkpoint.keep=1"});
  // Where a checkpoint is due, and good again at the next one.
  const RunResult due = RunFaulty(recipe, folder / "due", {{3, Injected::kNan}, {4, Injected::kNan}});
  REQUIRE_MESSAGE(due.status.ok(), Message(due.status));
  CHECK(
      Contains(due.notes,
               "warning: no checkpoint of iteration 4: the losses of the last 2 iterations were not finite"));
  CHECK((Checkpoints(folder / "due") == std::vector<std::int64_t>{kLast}));
  // At the end.
  const RunResult last = RunFaulty(recipe, folder / "last", {{11, Injected::kNan}, {kLast, Injected::kNan}});
  CHECK_MESSAGE(Contains(std::string(Message(last.status)),
                         "the losses of the last 2 iterations up to iteration 12 were not finite"),
                Message(last.status));
  CHECK(absl::IsDataLoss(last.status));
  CHECK((Checkpoints(folder / "last") == std::vector<std::int64_t>{8}));
  // And it goes on from there.
  const RunResult again = RunFaulty(recipe, folder / "last", {});
  REQUIRE_MESSAGE(again.status.ok(), Message(again.status));
  CHECK(Contains(again.output, "after iteration 8"));
  CHECK((Checkpoints(folder / "last") == std::vector<std::int64_t>{kLast}));
}

TEST_CASE("guard: a run that is stopped anywhere, and resumed, is the undisturbed one, bit by bit") {
  const GuardFolder folder;
  const recipe::Recipe recipe =
      folder.Recipe({"guard.on_spike=rewind", "guard.spike_window=3", "guard.spike_loss=50"});
  const Injections fault = {{7, Injected::kLossSpike}};
  REQUIRE(RunFaulty(recipe, folder / "whole", fault).status.ok());
  CHECK(Returns(folder / "whole").size() == 1);
  // 6: with a window that is full; 3: with one that is not; 9: with a range that was left out.
  for (const std::int64_t stop : {3, 6, 9}) {
    CAPTURE(stop);
    const std::string out = folder / std::to_string(stop);
    Injections faults = fault;
    faults[stop] = Injected::kStop;
    const RunResult first = RunFaulty(recipe, out, faults);
    REQUIRE_MESSAGE(first.status.ok(), Message(first.status));
    CHECK(Checkpoints(out).back() < kLast);
    const RunResult second = RunFaulty(recipe, out, fault);
    REQUIRE_MESSAGE(second.status.ok(), Message(second.status));
    CHECK((TensorsOf(out, kLast) == TensorsOf(folder / "whole", kLast)));
  }
}

TEST_CASE("guard: ranks that go on from memory judge as before, also behind a return to a checkpoint") {
  const GuardFolder folder;
  folder.RunByHand("7");
  const recipe::Recipe recipe =
      folder.Recipe({"guard.on_spike=skip", "guard.spike_window=3", "guard.spike_loss=50",
                     "checkpoint.memory=true", "checkpoint.memory_interval=1"});
  struct Case {
    Injections first, second;
    std::int64_t resumed;  // after that iteration, from memory; 0: from the disk
    const char* what;
  };
  for (const Case& row : {
           Case{{{6, Injected::kFail}},
                {{7, Injected::kLossSpike}},
                5,
                "before the spike, with a window that is full"},
           Case{{{7, Injected::kLossSpike}, {11, Injected::kFail}}, {}, 10, "behind the return"},
           Case{{{7, Injected::kLossSpike}, {5, Injected::kFailAgain}},
                {{7, Injected::kLossSpike}},
                0,
                "just behind the return, where copies are of iterations that were left"},
       }) {
    CAPTURE(row.what);
    const std::string out = folder / row.what;
    const MemoryFiles files(2);
    const RunOptions options = {.out = out, .memory_files = files.numbers};
    const RunResult first = RunCaught(recipe, options, FaultyDevice(row.first));
    REQUIRE(Contains(Message(first.status), "this rank has failed"));
    for (const int file : files.numbers) CHECK(MemoryCopies::In(file).empty() == (row.resumed == 0));
    const RunResult second = RunCaught(recipe, options, FaultyDevice(row.second));
    REQUIRE_MESSAGE(second.status.ok(), Message(second.status));
    const std::string from_memory =
        fmt::format("resumed from the hosts' memory after iteration {}\n", row.resumed);
    CHECK_MESSAGE(Contains(second.output, from_memory) == (row.resumed > 0), second.output);
    CheckSame(out, folder / "by hand");
    // A run that knows nothing of its return meets the spike again, and goes back once more.
    CHECK(Returns(out).size() == (row.resumed > 0 ? 1 : 2));
  }
  // A copy beside which nothing is remembered does not count.
  const std::string out = folder / "forgotten";
  const MemoryFiles files(2);
  const RunOptions options = {.out = out, .memory_files = files.numbers};
  REQUIRE_FALSE(RunCaught(recipe, options, FaultyDevice({{6, Injected::kFail}})).status.ok());
  for (const auto& note : std::filesystem::directory_iterator(out + "/guard"))
    data::WriteFile(note.path(), "{}");
  const RunResult second = RunCaught(recipe, options, FaultyDevice({{7, Injected::kLossSpike}}));
  REQUIRE_MESSAGE(second.status.ok(), Message(second.status));
  CHECK(Contains(second.output, "/iteration_0000004 after iteration 4"));
  CheckSame(out, folder / "by hand");
}

TEST_CASE("guard: a bad iteration is trained once more, and what it is then decides") {
  const GuardFolder folder;
  const std::string twice =
      "iteration 7: loss nan and gradient norm nan; back to iteration 4, to train the same once more";
  // Bad again, to the bit: the model or the data, and the policy acts.
  folder.RunByHand("5-7");
  const RunResult policy = RunFaulty(folder.Recipe({"guard.rerun=true", "guard.on_nonfinite=rewind"}),
                                     folder / "policy", {{7, Injected::kNan}});
  REQUIRE_MESSAGE(policy.status.ok(), Message(policy.status));
  CHECK(Contains(policy.output, twice));
  CHECK(Contains(policy.output, "leaving out iterations 5 to 7 (rewind 1 of at most 3)"));
  CheckSame(folder / "policy", folder / "by hand");
  const RunResult stop =
      RunFaulty(folder.Recipe({"guard.rerun=true"}), folder / "stop", {{7, Injected::kNan}});
  CHECK(Contains(stop.output, twice));
  CHECK(Contains(std::string(Message(stop.status)),
                 "iteration 7: loss nan and gradient norm nan, also when it was trained once more, so no "
                 "machine is at fault, "
                 "so the weights are spoilt"));
  CHECK(absl::IsDataLoss(stop.status));
  CHECK(VerdictOf(stop.status) == Verdict::kTrue);
  // Bad only once: the machine.
  const RunResult machine =
      RunFaulty(folder.Recipe({"guard.rerun=true"}), folder / "machine", {{7, Injected::kNanOnce}});
  CHECK(Contains(machine.output, twice));
  CHECK(Contains(std::string(Message(machine.status)),
                 "iteration 7 gave loss nan and gradient norm nan, and when it was trained "
                 "once more from the same checkpoint, loss "));
  CHECK(absl::IsInternal(machine.status));
  CHECK(VerdictOf(machine.status) == Verdict::kMachine);
  CHECK(Checkpoints(folder / "machine").back() == 4);
  // Without a fault nothing is trained twice.
  MustRun(folder.Recipe({"guard.rerun=true", "guard.on_spike=skip"}), folder / "well");
  CHECK(Returns(folder / "well").empty());
}

TEST_CASE("guard: what ranks exchange is the same where nothing of it was wrong, in every layout") {
  const GuardFolder folder;
  for (const std::vector<std::string>& layout :
       std::vector<std::vector<std::string>>{{"parallelism.dp=2"},
                                             {"parallelism.dp=1", "parallelism.tp=2"},
                                             {"parallelism.dp=1", "parallelism.cp=2"},
                                             {"parallelism.dp=1", "parallelism.pp=2"},
                                             {"parallelism.dp=2", "parallelism.pp=2"},
                                             {"parallelism.dp=2", "parallelism.tp=2"}}) {
    INFO(layout.front() << " " << layout.back());
    std::vector<std::string> sets = {"guard.rerun=true", "guard.trace=true"};
    sets.insert(sets.end(), layout.begin(), layout.end());
    const RunResult result = RunFaulty(folder.Recipe(sets), folder / "run", {{7, Injected::kNanOnce}}, false);
    std::filesystem::remove_all(folder / "run");
    const std::string message(Message(result.status));
    CHECK_MESSAGE(VerdictOf(result.status) == Verdict::kMachine, message);
    CHECK_MESSAGE(
        Contains(message, "\nall that ranks gave and got was the same, so it went wrong behind that"),
        message);
  }
}

TEST_CASE("guard: every sink hears of a return") {
  const GuardFolder folder;
  const recipe::Recipe recipe = folder.Recipe({"guard.on_nonfinite=rewind",
                                               "logging.sinks=[\"tensorboard\", \"wandb\", \"prometheus\"]",
                                               "logging.prometheus.textfile=" + folder / "run.prom"});
  const RunResult result = RunFaulty(recipe, folder / "run", {{7, Injected::kNan}});
  REQUIRE_MESSAGE(result.status.ok(), Message(result.status));
  CHECK(result.notes.find("warning") == std::string::npos);
  std::ifstream file(folder / "run.prom");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  CHECK(Contains(text, "engine_rewinds_total{run=\"run\"} 1\n"));
  CHECK(Contains(text, "engine_last_bad_iteration{run=\"run\"} 7\n"));
  CHECK(Contains(text, "engine_left_out_iterations_total{run=\"run\"} 3\n"));
  // An event file until the return, and one from there.
  std::int64_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "run/tensorboard"))
    files += entry.is_regular_file() ? 1 : 0;
  CHECK(files == 2);
}

TEST_CASE("guard: a training goes back only so many times") {
  const GuardFolder folder;
  const recipe::Recipe recipe = folder.Recipe({"guard.on_nonfinite=rewind", "guard.max_rewinds=1"});
  const RunResult result = RunFaulty(recipe, folder / "run", {{6, Injected::kNan}, {8, Injected::kNan}});
  CHECK(Message(result.status) ==
        "iteration 8: loss nan and gradient norm nan; the training has gone back as often as "
        "guard.max_rewinds 1 allows");
  // And without a guard not at all.
  const RunResult plain = RunFaulty(folder.Recipe({}), folder / "plain", {{6, Injected::kNan}});
  CHECK(Contains(std::string(Message(plain.status)), "so the weights are spoilt and not saved"));
  CHECK(VerdictOf(plain.status) == Verdict::kNone);
}

}  // namespace engine::train::testing
