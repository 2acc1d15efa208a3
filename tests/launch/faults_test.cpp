// What a run makes of each kind of fault, through the program: how it ends, what it says, and that it goes on to the bits
// of a run without faults where it is started again.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli/tiny_run.h"
#include "tests/launch/background.h"

namespace engine::launch {
namespace {

using cli::Contains;
using cli::ProgramResult;
using cli::RunProgram;
using cli::TinyRun;

constexpr const char* kTwoRanks =
    " --set debug.faults=true --set parallelism.dp=2 --set parallelism.zero_stage=1";

std::string WeightsOf(const std::string& out) {
  return data::ReadFile(out + "/checkpoints/iteration_0000008/rank_00000.h5") +
         data::ReadFile(out + "/checkpoints/iteration_0000008/rank_00001.h5");
}

std::string FaultsOf(const std::string& out) { return data::ReadFile(out + "/faults.jsonl"); }

struct Faulted {
  explicit Faulted(const TinyRun& of) : tiny(of) {}

  ProgramResult Run(const std::string& name, const std::string& more) const {
    return RunProgram("run " + tiny.recipe + kTwoRanks + " --out " + Out(name) + " " + more);
  }
  std::string Out(const std::string& name) const { return tiny.out + name; }

  const TinyRun& tiny;
};

}  // namespace

TEST_CASE("faults: a rank that is lost at any point, once: the run starts again and ends with its bits") {
  const TinyRun tiny;
  const Faulted faulted(tiny);
  REQUIRE(faulted.Run("_whole", "--processes").exit_code == 0);
  struct Case {
    std::string name, fault, verdict;
  };
  const Case cases[] = {
      {"_kill", "rank=1,iteration=6,at=exchange,kind=kill", "was killed by signal 9 (Killed)"},
      {"_save", "rank=1,iteration=8,at=save,kind=kill", "was killed by signal 9 (Killed)"},
      {"_throw", "rank=1,iteration=5,at=data,kind=throw", "was killed by signal 6 (Aborted)"},
      {"_exit", "rank=1,iteration=5,at=update,kind=exit:4", "ended with exit code 4"}};
  for (const Case& c : cases) {
    INFO("fault:" << c.fault);
    const ProgramResult run = faulted.Run(c.name, "--processes --max-restarts 1 --fault " + c.fault);
    CHECK_MESSAGE(run.exit_code == 0, run.output);
    CHECK(Contains(run.output, "note: fault " + c.fault + " is made in iteration "));
    CHECK(Contains(run.output, c.verdict + "; restart 1 of 1 "));
    const std::string log = FaultsOf(faulted.Out(c.name));
    CHECK(std::count(log.begin(), log.end(), '\n') == 1);
    CHECK(Contains(log, "{\"fault\":\"" + c.fault + "\",\"rank\":1,\"iteration\":"));
    CHECK(LossesOf(faulted.Out(c.name)) == LossesOf(faulted.Out("_whole")));
    CHECK(WeightsOf(faulted.Out(c.name)) == WeightsOf(faulted.Out("_whole")));
    CHECK(!HasOrphans(tiny));
  }
}

TEST_CASE(
    "faults: connections that drop, a rank that is stopped and one that hangs end the run with the rank's "
    "name") {
  const TinyRun tiny;
  const Faulted faulted(tiny);
  const ProgramResult dropped =
      faulted.Run("_drop", "--processes --fault rank=1,iteration=3,at=exchange,kind=drop-connection");
  CHECK_MESSAGE(dropped.exit_code == 5, dropped.output);
  CHECK(Contains(dropped.output, "rank 1 ("));
  CHECK(Contains(dropped.output, ") was lost: connection closed"));
  const ProgramResult stopped = faulted.Run(
      "_stop", "--processes --heartbeat-timeout 0.5 --fault rank=1,iteration=3,at=forward,kind=stop");
  CHECK_MESSAGE(stopped.exit_code == 5, stopped.output);
  CHECK(Contains(stopped.output, ") was lost: not heard of for 0.5 s"));
  // Its process is heard of, and wakes later, to find the run ended.
  const ProgramResult hangs = faulted.Run(
      "_hang", "--processes --hang-timeout 0.5 --fault rank=1,iteration=3,at=forward,kind=hang:2");
  CHECK_MESSAGE(hangs.exit_code == 5, hangs.output);
  CHECK(Contains(hangs.output, "the run hangs: no rank got on for 0.5 s; all others wait for rank 1 ("));
  CHECK(!HasOrphans(tiny));
}

TEST_CASE(
    "faults: an exit that no other try cures, and a full disk for a required checkpoint, end the run; the "
    "one before stays") {
  const TinyRun tiny;
  const Faulted faulted(tiny);
  const ProgramResult ended =
      faulted.Run("_exit",
                  "--processes --max-restarts 3 --set checkpoint.background=false --fault "
                  "rank=1,iteration=6,kind=exit");
  CHECK_MESSAGE(ended.exit_code == 1, ended.output);
  CHECK(NewestCheckpoint(faulted.Out("_exit")) == "iteration_0000004");
  for (const std::string processes : {"", "--processes"}) {
    const std::string out = "_full" + processes;
    const std::string command = processes +
                                " --set checkpoint.interval=2 --set checkpoint.keep=1 --set "
                                "checkpoint.required=true --fault rank=1,iteration=6,kind=enospc";
    const ProgramResult full = faulted.Run(out, command);
    CHECK_MESSAGE(full.exit_code == 1, full.output);
    CHECK(Contains(full.output, "rank_00001.h5: No space left on device"));
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(faulted.Out(out) + "/checkpoints"))
      names.push_back(entry.path().filename());
    CHECK(names == std::vector<std::string>{"iteration_0000004"});
    CHECK(RunProgram("checkpoint info --verify " + faulted.Out(out) + "/checkpoints/iteration_0000004")
              .exit_code == 0);
    CHECK(faulted.Run(out, command).exit_code == 0);  // made already
  }
}

TEST_CASE(
    "faults: after a full disk all ranks train on to the next checkpoint, and the last one is tried again") {
  const TinyRun tiny;
  const Faulted faulted(tiny);
  REQUIRE(faulted.Run("_whole", "").exit_code == 0);
  for (const std::string processes : {"", "--processes"}) {
    for (const std::string background : {"true", "false"}) {
      for (const auto& [rank, iteration] : {std::pair{0, 4}, std::pair{1, 4}, std::pair{1, 8}}) {
        INFO(processes << " background " << background << ", rank " << rank << ", iteration " << iteration);
        const std::string out = fmt::format("_{}{}{}{}", processes, background, rank, iteration);
        const ProgramResult full = faulted.Run(
            out, fmt::format("{} --set checkpoint.background={} --fault rank={},iteration={},kind=enospc",
                             processes, background, rank, iteration));
        CHECK_MESSAGE(full.exit_code == 0, full.output);
        CHECK_MESSAGE(
            Contains(full.output, fmt::format("warning: saving the checkpoint of iteration {}: ", iteration)),
            full.output);
        CHECK(Contains(full.output,
                       fmt::format("rank_0000{}.h5: No space left on device; {}", rank,
                                   iteration == 4 ? "there is no checkpoint, and training goes on to the next"
                                                  : "it is tried again for 600 s, until ")));
        CHECK(LossesOf(faulted.Out(out)) == LossesOf(faulted.Out("_whole")));
        CHECK(WeightsOf(faulted.Out(out)) == WeightsOf(faulted.Out("_whole")));
        CHECK(std::filesystem::exists(faulted.Out(out) + "/checkpoints/iteration_0000004") ==
              (iteration == 8));
      }
    }
  }
}

TEST_CASE(
    "faults: numbers that are not finite end the run; a turned bit changes what follows, the same bit each "
    "time") {
  const TinyRun tiny;
  const Faulted faulted(tiny);
  REQUIRE(faulted.Run("_whole", "").exit_code == 0);
  const std::vector<std::string> whole = LossesOf(faulted.Out("_whole"));
  REQUIRE(whole.size() == 8);
  for (const std::string at : {"forward", "update"}) {
    const ProgramResult nan = faulted.Run("_" + at, "--fault rank=1,iteration=3,kind=nan,at=" + at);
    CHECK_MESSAGE(nan.exit_code == 1, nan.output);
    CHECK(Contains(nan.output, "iteration 3: loss "));
    CHECK(Contains(nan.output, "so the weights are spoilt and not saved"));
  }
  const std::string tensor = "final_norm.weight";
  const std::string flip = "--fault rank=0,iteration=3,kind=bitflip:" + tensor + ",seed=";
  REQUIRE(faulted.Run("_flip", flip + "1").exit_code == 0);
  REQUIRE(faulted.Run("_again", flip + "1").exit_code == 0);
  REQUIRE(faulted.Run("_other", flip + "2").exit_code == 0);
  const std::vector<std::string> flipped = LossesOf(faulted.Out("_flip"));
  REQUIRE(flipped.size() == 8);
  CHECK(std::equal(flipped.begin(), flipped.begin() + 2, whole.begin()));
  CHECK(flipped[2] != whole[2]);
  CHECK(LossesOf(faulted.Out("_again")) == flipped);
  CHECK(LossesOf(faulted.Out("_other")) != flipped);
  const ProgramResult unknown = faulted.Run("_none", "--fault rank=1,iteration=3,kind=nan:no.such");
  CHECK(unknown.exit_code == 1);
  CHECK(Contains(unknown.output, "kind=nan:no.such,seed=0: rank 1 holds no no.such; it has "));
}

TEST_CASE("faults: a rank that computed something wrong once is named, and so is what changed on its way") {
  const TinyRun tiny;
  const Faulted faulted(tiny);
  const std::string traced =
      "--processes --set guard.rerun=true --set guard.trace=true --set checkpoint.interval=2 ";
  const ProgramResult computed = faulted.Run("_computed", traced + "--fault rank=1,iteration=6,kind=nan");
  CHECK_MESSAGE(computed.exit_code == 16, computed.output);
  CHECK(Contains(computed.output, "and when it was trained once more from the same checkpoint, loss "));
  CHECK(Contains(computed.output, "\nrank 1 ("));
  CHECK(Contains(computed.output, ") gave other bits in iteration 6, in "));
  CHECK(Contains(computed.output, ", though all that it had got was the same: it computes or stores"));
  const ProgramResult moved = faulted.Run("_moved", traced +
                                                        "--fault "
                                                        "rank=1,iteration=6,at=exchange,kind=nan:received");
  CHECK_MESSAGE(moved.exit_code == 16, moved.output);
  CHECK(Contains(moved.output, "\nrank 1 ("));
  CHECK(Contains(moved.output, ") got other bits in iteration 6, in "));
  CHECK(!Contains(moved.output, "gave other bits"));
}

TEST_CASE("faults: a slow rank, and one that stands still for a while, cost time and no bits") {
  const TinyRun tiny;
  const Faulted faulted(tiny);
  REQUIRE(faulted.Run("_whole", "").exit_code == 0);
  REQUIRE(faulted.Run("_slow", "--fault rank=1,iteration=7,kind=slow:200x,every=1").exit_code == 0);
  std::istringstream file(data::ReadFile(faulted.Out("_slow") + "/metrics.jsonl"));
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json json = nlohmann::json::parse(line);
    if (!json.contains("rank_busy_ms") || json["iteration"] < 7) continue;
    CHECK(json["rank_busy_ms"][1].get<double>() > 5);  // 200 times some 0.1 ms; more on a loaded machine
  }
  CHECK(LossesOf(faulted.Out("_slow")) == LossesOf(faulted.Out("_whole")));
  const std::string log = FaultsOf(faulted.Out("_slow"));
  CHECK(std::count(log.begin(), log.end(), '\n') == 1);  // once a process
  REQUIRE(faulted.Run("_hang", "--processes --fault rank=1,iteration=3,at=data,kind=hang:0.2").exit_code ==
          0);
  CHECK(LossesOf(faulted.Out("_hang")) == LossesOf(faulted.Out("_whole")));
}

TEST_CASE(
    "faults: one that is not made is told; without [debug] faults they are refused, and the plan knows "
    "nothing of them") {
  const TinyRun tiny;
  const std::string fault = " --fault rank=0,iteration=2,kind=kill";
  // Of a rank that has nothing that others have not.
  const ProgramResult missed =
      RunProgram("run " + tiny.recipe + " --set debug.faults=true --set parallelism.dp=2 --out " + tiny.out +
                 "_missed --fault rank=1,iteration=8,kind=enospc");
  CHECK(missed.exit_code == 0);
  CHECK(
      Contains(missed.output,
               "warning: fault rank=1,iteration=8,at=save,kind=enospc was not made: the rank wrote no part"));
  const ProgramResult refused = RunProgram("run " + tiny.recipe + fault + " --out " + tiny.out);
  CHECK(refused.exit_code == 2);
  CHECK(Contains(
      refused.output,
      "engine run: --fault: the recipe allows no faults: [debug] faults = true, or --set debug.faults=true"));
  CHECK(!std::filesystem::exists(tiny.out));
  const std::string without = RunProgram("plan --full " + tiny.recipe).output;
  CHECK(RunProgram("plan --full " + tiny.recipe + " --set debug.faults=true").output == without);
}

}  // namespace engine::launch
