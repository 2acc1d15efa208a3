// How a run ended: exit codes for schedulers, and outcome.json.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "engine/launch/stop_requests.h"
#include "tests/launch/background.h"

namespace engine::launch {
namespace {

using cli::Contains;
using cli::ProgramResult;
using cli::RunProgram;
using cli::TinyRun;

constexpr const char* kCodes = " --stopped-code 43 --retry-code 75";

bool HasOutcome(const std::string& out) { return std::filesystem::exists(out + "/outcome.json"); }

nlohmann::json OutcomeIn(const std::string& out) {
  REQUIRE(HasOutcome(out));
  nlohmann::json outcome = nlohmann::json::parse(data::ReadFile(out + "/outcome.json"));
  CHECK(!outcome["host"].get<std::string>().empty());
  CHECK(outcome["ended"].get<std::string>().size() == std::string("2026-11-26T05:00:00Z").size());
  outcome.erase("host");
  outcome.erase("ended");
  return outcome;
}

std::string RunOf(const TinyRun& tiny, const std::string& settings) {
  return "run " + tiny.recipe + " --set parallelism.dp=2 --threads 2 --out " + tiny.out + settings + kCodes;
}

// Within 30 s.
bool Comes(const std::function<bool()>& holds) {
  for (int i = 0; i < 6000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

}  // namespace

TEST_CASE(
    "outcome: a run to the end has finished, also where it had before, and what is refused changes nothing") {
  const TinyRun tiny;
  const nlohmann::json finished = {{"outcome", "finished"}, {"iteration", 8}, {"iterations", 8}};
  CHECK(RunProgram(RunOf(tiny, "")).exit_code == 0);
  CHECK(OutcomeIn(tiny.out) == finished);
  CHECK(RunProgram(RunOf(tiny, "")).exit_code == 0);
  CHECK(OutcomeIn(tiny.out) == finished);
  CHECK(RunProgram(RunOf(tiny, " --fresh")).exit_code == 1);
  CHECK(RunProgram(RunOf(tiny, " --set model.hidden=32")).exit_code == 1);
  CHECK(OutcomeIn(tiny.out) == finished);
}

TEST_CASE("outcome: a run that a signal stops has the code that was asked for") {
  for (const std::string& form : {std::string(), std::string(" --processes")}) {
    INFO(form);
    const TinyRun tiny;
    CHECK(RunProgram(RunOf(tiny, form)).exit_code == 0);
    Background run(tiny, "stopped", RunOf(tiny, kEndless + form + (form.empty() ? "" : " --max-restarts 2")));
    REQUIRE_MESSAGE(WaitForMetrics(tiny.out, 12000), run.log());  // more than the run before has left
    CHECK_FALSE(HasOutcome(tiny.out));                            // that of before is not this run's
    kill(run.pid(), SIGTERM);
    CHECK_MESSAGE(run.Wait(60) == 43, run.log());
    const nlohmann::json outcome = OutcomeIn(tiny.out);
    CHECK(outcome["outcome"] == "stopped");
    CHECK(NewestCheckpoint(tiny.out) == fmt::format("iteration_{:07}", outcome["iteration"].get<int>()));
  }
}

TEST_CASE("outcome: a run that a second signal ends says so, and that nothing is saved") {
  for (const std::string& form : {std::string(), std::string(" --processes")}) {
    INFO(form);
    const TinyRun tiny;
    const std::string hangs = " --set debug.faults=true --fault rank=0,iteration=6,kind=hang";
    Background run(tiny, "twice", RunOf(tiny, hangs + form));
    REQUIRE_MESSAGE(Comes([&] { return std::filesystem::exists(tiny.out + "/faults.jsonl"); }), run.log());
    kill(run.pid(), SIGTERM);
    CHECK_MESSAGE(run.Wait(1) == -1, run.log());
    CHECK_FALSE(HasOutcome(tiny.out));
    kill(run.pid(), SIGTERM);
    CHECK_MESSAGE(run.Wait(60) == 128 + SIGTERM, run.log());
    CHECK(Contains(run.log(), kStoppedAtOnce));
    const nlohmann::json outcome = OutcomeIn(tiny.out);
    CHECK(outcome["outcome"] == "failed");
    CHECK(outcome["reason"] == kStoppedAtOnce);
    CHECK(outcome["retryable"] == false);
    CHECK(outcome["iteration"] ==
          (form.empty() ? nlohmann::json(5) : nlohmann::json()));  // rank 0 was killed
  }
}

TEST_CASE("outcome: a run whose rank is killed may go well another time") {
  for (const std::size_t rank : {std::size_t{0}, std::size_t{1}}) {
    INFO(rank);
    const TinyRun tiny;
    Background run(tiny, "killed", RunOf(tiny, std::string(kEndless) + " --processes"));
    REQUIRE_MESSAGE(WaitForMetrics(tiny.out, 1500), run.log());
    kill(run.children().at(rank), SIGKILL);
    CHECK_MESSAGE(run.Wait(60) == 75, run.log());
    const nlohmann::json outcome = OutcomeIn(tiny.out);
    CHECK(outcome["outcome"] == "failed");
    CHECK(outcome["retryable"] == true);
    CHECK(outcome["iteration"].is_null() == (rank == 0));
    CHECK_MESSAGE(Contains(outcome["reason"], rank == 0 ? "was killed by signal 9" : "rank 1"),
                  outcome["reason"]);
  }
}

TEST_CASE("outcome: what all ranks come to alike is no other rank's failure, so that nobody tries it again") {
  constexpr const char* kFull = "sh -c 'trap \"\" XFSZ; ulimit -S -f 80; exec \"$@\"' sh";  // 40 KiB
  const std::string nan =
      " --set debug.faults=true --fault rank=1,iteration=5,at=forward,kind=nan:layers.0.mlp.norm.weight";
  const std::string unsaved = " --set parallelism.zero_stage=1 --set checkpoint.final_patience=0";
  struct Case {
    std::string settings;
    const char* prefix;
    const char* reason;  // begins so
  };
  for (const Case& row :
       {Case{nan, "", "iteration 5: loss "},
        Case{nan + " --set guard.on_nonfinite=skip", "", "the losses of the last 4 iterations"},
        Case{unsaved, kFull, "saving the checkpoint of iteration 8: "}}) {
    for (int times = 0; times < 4; ++times) {  // whoever is first
      CAPTURE(row.settings);
      const TinyRun tiny;
      Background run(tiny, "failed", RunOf(tiny, row.settings + " --processes"), "", row.prefix);
      CHECK_MESSAGE(run.Wait(60) == 1, run.log());
      const nlohmann::json outcome = OutcomeIn(tiny.out);
      CHECK(outcome["outcome"] == "failed");
      CHECK(outcome["retryable"] == false);
      CHECK_MESSAGE(outcome["reason"].get<std::string>().starts_with(row.reason), outcome["reason"]);
    }
  }
}

TEST_CASE("restarts: a run whose ranks are killed goes on by itself, to the same bits") {
  const TinyRun tiny;
  const std::string settings =
      " --set training.iterations=80 --set checkpoint.interval=1 --set checkpoint.keep=2 --processes";
  Background run(tiny, "killed", RunOf(tiny, settings + " --max-restarts 5"));
  for (const std::size_t rank : {std::size_t{0}, std::size_t{1}}) {
    REQUIRE_MESSAGE(WaitForMetrics(tiny.out, rank == 0 ? 2000 : 6000), run.log());
    const std::string before = NewestCheckpoint(tiny.out);
    const std::vector<pid_t> ranks = run.children();
    REQUIRE(ranks.size() == 2);
    kill(ranks[rank], SIGKILL);
    CHECK(Comes([&] {
      return NewestCheckpoint(tiny.out) > before && run.children().size() == 2 && run.children() != ranks;
    }));
  }
  CHECK_MESSAGE(run.Wait(120) == 0, run.log());
  CHECK_MESSAGE(Contains(run.log(), "was killed by signal 9 (Killed); restart 1 of 5 at once\n"), run.log());
  CHECK_MESSAGE(Contains(run.log(), "was killed by signal 9 (Killed); restart 2 of 5 at once\n"), run.log());
  CHECK(run.log().find("restart 3") == std::string::npos);
  CHECK(OutcomeIn(tiny.out)["outcome"] == "finished");
  const std::string other = tiny.out + "_undisturbed";
  CHECK(RunProgram("run " + tiny.recipe + " --set parallelism.dp=2 --threads 2 --out " + other + settings)
            .exit_code == 0);
  int shards = 0;
  for (const auto& entry : std::filesystem::directory_iterator(other + "/checkpoints/iteration_0000080")) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("rank_")) continue;
    ++shards;
    CHECK(data::ReadFile(entry.path()) ==
          data::ReadFile(tiny.out + "/checkpoints/iteration_0000080/" + name));
  }
  CHECK(shards > 0);
  CHECK(!HasOrphans(tiny));
}

TEST_CASE(
    "restarts: without a checkpoint between them three failures are the end, and a stop is one at once") {
  const TinyRun tiny;
  const std::string settings =
      " --set training.iterations=200000 --set checkpoint.interval=0 --processes --max-restarts 9";
  const auto kill_rank = [](const Background& run) {
    REQUIRE(Comes([&] { return run.children().size() == 2; }));
    kill(run.children().at(1), SIGKILL);
    CHECK(Comes([&] { return run.children().size() != 2; }));
  };
  Background run(tiny, "vain", RunOf(tiny, settings));
  for (int failure = 0; failure < 3; ++failure) kill_rank(run);
  CHECK_MESSAGE(run.Wait(60) == 75, run.log());
  CHECK_MESSAGE(Contains(run.log(), "restart 2 of 9 in 2 s\n"), run.log());
  CHECK_MESSAGE(Contains(run.log(), "not started again: 3 failures without a checkpoint between them\n"),
                run.log());

  Background stopped(tiny, "stopped", RunOf(tiny, settings));
  kill_rank(stopped);
  CHECK(Comes([&] { return stopped.log().find("restart 1 of 9") != std::string::npos; }));
  kill(stopped.pid(), SIGTERM);
  CHECK_MESSAGE(stopped.Wait(20) == 43, stopped.log());
  CHECK(!HasOrphans(tiny));

  const ProgramResult wrong = RunProgram(RunOf(tiny, settings + " --set model.hidden=17"));
  CHECK(wrong.exit_code == 1);
  CHECK(wrong.output.find("restart 1") == std::string::npos);

  const ProgramResult alone = RunProgram("run " + tiny.recipe + " --max-restarts 1");
  CHECK(alone.exit_code == 2);
  CHECK_MESSAGE(
      Contains(alone.output,
               "--max-restarts: is for runs whose ranks are processes that this one starts: --processes"),
      alone.output);
}

TEST_CASE("outcome: a training that fails by itself fails again") {
  const TinyRun tiny;
  const ProgramResult run =
      RunProgram(RunOf(tiny, " --set optimizer.learning_rate=1e6 --set training.iterations=200"));
  CHECK_MESSAGE(run.exit_code == 1, run.output);
  const nlohmann::json outcome = OutcomeIn(tiny.out);
  CHECK(outcome["outcome"] == "failed");
  CHECK(outcome["retryable"] == false);
  CHECK_MESSAGE(Contains(outcome["reason"], "the weights are spoilt"), outcome["reason"]);
}

TEST_CASE("outcome: a number that is bad again, to the bit, has an exit code of its own") {
  const TinyRun tiny;
  for (const char* form : {"", " --set parallelism.dp=2 --processes"}) {
    INFO(form);
    const ProgramResult run = RunProgram(RunOf(
        tiny, std::string(form) +
                  " --set optimizer.learning_rate=1e6 --set training.iterations=200 --set guard.rerun=true"));
    CHECK_MESSAGE(run.exit_code == 17, run.output);
    CHECK_MESSAGE(Contains(run.output, "to train the same once more and compare"), run.output);
    const nlohmann::json outcome = OutcomeIn(tiny.out);
    CHECK(outcome["retryable"] == false);
    CHECK_MESSAGE(Contains(outcome["reason"], "so no machine is at fault"), outcome["reason"]);
    std::filesystem::remove_all(tiny.out);
  }
}

TEST_CASE("nodes: two pods of a PyTorchJob are the two hosts of a run") {
  const TinyRun tiny;
  const int port = FreePort();
  const auto pod = [&](int node, const std::string& more) {
    return fmt::format(
        "RANK={} WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={} PET_NNODES=2 "
        "PET_NODE_RANK={} "
        "PET_MASTER_ADDR=127.0.0.1 PET_MASTER_PORT={} {}",
        node, port, node, port, more);
  };
  const std::string arguments = RunOf(tiny, "");
  Background first(tiny, "first", arguments, pod(0, "PET_NPROC_PER_NODE=auto"));
  Background second(tiny, "second", arguments, pod(1, "PET_NPROC_PER_NODE=1"));
  CHECK_MESSAGE(first.Wait(60) == 0, first.log());
  CHECK_MESSAGE(second.Wait(60) == 0, second.log());
  CHECK(OutcomeIn(tiny.out)["outcome"] == "finished");

  const ProgramResult refused = RunProgram(arguments, pod(1, "PET_NPROC_PER_NODE=4"));
  CHECK(refused.exit_code == 2);
  CHECK_MESSAGE(
      Contains(refused.output, "PET_NPROC_PER_NODE is 4, but the recipe's 2 ranks on 2 hosts are 1 on each"),
      refused.output);
}

TEST_CASE("nodes: a coordinator's name that is a loopback address for its own host is refused") {
  const TinyRun tiny;
  const std::string arguments = RunOf(
      tiny, fmt::format(" --nodes 2 --node-rank 0 --coordinator 0x7f000001:{}", FreePort()));  // 127.0.0.1
  const ProgramResult refused = RunProgram(arguments, "ENGINE_TOKEN=t");
  CHECK(refused.exit_code == 1);
  CHECK_MESSAGE(
      Contains(refused.output,
               "0x7f000001 is 127.0.0.1 for this machine itself (see its /etc/hosts), and the other hosts"),
      refused.output);
}

TEST_CASE("restarts: hosts whose run has lost a rank meet again") {
  const TinyRun tiny;
  const int port = FreePort();
  const auto host = [&](int node) {
    return RunOf(
        tiny, fmt::format(" --set training.iterations=60 --set checkpoint.interval=1 --set checkpoint.keep=2 "
                          "--nodes 2 --node-rank {} --coordinator 127.0.0.1:{} --max-restarts 3",
                          node, port));
  };
  Background first(tiny, "first", host(0), "ENGINE_TOKEN=t");
  Background second(tiny, "second", host(1), "ENGINE_TOKEN=t");
  REQUIRE_MESSAGE(WaitForMetrics(tiny.out, 2000), first.log());
  REQUIRE(second.children().size() == 1);
  kill(second.children().at(0), SIGKILL);
  CHECK_MESSAGE(first.Wait(120) == 0, first.log());
  CHECK_MESSAGE(second.Wait(60) == 0, second.log());
  CHECK_MESSAGE(Contains(first.log(), "a rank of another host was lost; restart 1 of 3 at once"),
                first.log());
  CHECK_MESSAGE(Contains(second.log(), "was killed by signal 9 (Killed); restart 1 of 3 at once"),
                second.log());
  CHECK(OutcomeIn(tiny.out)["outcome"] == "finished");
  CHECK(NewestCheckpoint(tiny.out) == "iteration_0000060");
  CHECK(!HasOrphans(tiny));
}

}  // namespace engine::launch
