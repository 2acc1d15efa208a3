// Hosts that are lost, through the program: others take their places, and the run ends with the bits of an undisturbed one.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "engine/launch/socket.h"
#include "tests/launch/emulated_hosts.h"

namespace engine::launch {
namespace {

using cli::Contains;
using cli::RunProgram;
using cli::TinyRun;

// Of a run's iterations, in order.
std::vector<double> LossNumbersOf(const std::string& out) {
  std::ifstream file(out + "/metrics.jsonl");
  std::vector<double> losses;
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json record = nlohmann::json::parse(line);
    if (record.contains("loss")) losses.push_back(record["loss"].get<double>());
  }
  return losses;
}

bool IsPortFree(int port) { return Listen({"127.0.0.1", port}).ok(); }

// Losses and the last checkpoint are those of a run of `ranks` that a person resumes from the checkpoint of that iteration: `whole` is a run with
// checkpoints of every iteration, `settings` are of both.
void CheckAsByHand(const TinyRun& tiny, const std::string& whole, int iteration, const std::string& settings,
                   int ranks) {
  const std::string by_hand = tiny.out + "_by_hand";
  std::filesystem::remove_all(by_hand);
  std::filesystem::copy(whole, by_hand, std::filesystem::copy_options::recursive);
  for (int later = iteration + 1; later <= 8; ++later)
    std::filesystem::remove_all(fmt::format("{}/checkpoints/iteration_{:07}", by_hand, later));
  REQUIRE(RunProgram(fmt::format("run {}{}{}--set parallelism.dp={} --out {}", tiny.recipe, kKept, settings,
                                 ranks, by_hand))
              .exit_code == 0);
  CHECK(LossesOf(tiny.out) == LossesOf(by_hand));
  CHECK(ShardsOf(tiny.out, 8) == ShardsOf(by_hand, 8));
  // Sums over the batch in another order: float32's epsilon, 1.2e-7, times a few iterations of AdamW.
  const std::vector<double> losses = LossNumbersOf(tiny.out);
  const std::vector<double> undisturbed = LossNumbersOf(whole);
  REQUIRE(losses.size() == 8);
  for (int i = 0; i < 8; ++i) {
    const auto at = static_cast<std::size_t>(i);
    CHECK(std::abs(losses[at] - undisturbed[at]) <= (i < iteration ? 0 : 1e-5 * undisturbed[at]));
  }
}

const std::string kOfTwelve =
    " --set training.global_batch=12 --set training.micro_batch=1 --set checkpoint.background=false "
    "--set checkpoint.keep=9 --threads 2 ";
const std::string kEach = "--set checkpoint.interval=1 ";  // on disk, after each iteration

}  // namespace

TEST_CASE(
    "spares: a host is lost at any moment, also the one that leads: a spare takes its place, and no bit "
    "changes") {
  const TinyRun tiny;
  REQUIRE(RunProgram("run " + tiny.recipe + kKept + " --out " + tiny.out + "_whole").exit_code == 0);
  for (const int lost : {1, 0}) {
    INFO("host " << lost);
    std::filesystem::remove_all(tiny.out);
    EmulatedHosts hosts(tiny, fmt::format("--fault rank={},iteration=6,at=exchange,kind=hang:60", lost),
                        {.nodes = 2, .spares = 1});
    REQUIRE_MESSAGE(WaitForFault(tiny.out), hosts.At(0).log());
    hosts.At(lost).KillAll();
    CHECK_MESSAGE(hosts.At(1 - lost).Wait(60) == 0, hosts.At(1 - lost).log());
    CHECK_MESSAGE(hosts.At(2).Wait(60) == 0, hosts.At(2).log());
    CHECK_MESSAGE(Contains(hosts.At(2).log(), fmt::format("host 2 (")), hosts.At(2).log());
    CHECK_MESSAGE(Contains(hosts.At(2).log(), fmt::format(") has place {}", lost)), hosts.At(2).log());
    // The copy of iteration 5 may not have been whole.
    const std::string log = hosts.At(2).log();
    const auto after = [&](int iteration) {
      return log.find(
                 fmt::format("rank {} has its state after iteration {} from the memory of another host\n",
                             lost, iteration)) != std::string::npos;
    };
    CHECK_MESSAGE((after(4) || after(5)), log);
    CHECK(LossesOf(tiny.out) == LossesOf(tiny.out + "_whole"));
    CHECK(ShardsOf(tiny.out, 8) == ShardsOf(tiny.out + "_whole", 8));
    CHECK(IsPortFree(hosts.port));
  }
  CHECK(!HasOrphans(tiny));
}

TEST_CASE("spares: four hosts lose two that are each other's partners, and go on from the disk") {
  const TinyRun tiny;
  const std::string four =
      " --set parallelism.tp=2 --set checkpoint.interval=2 --set checkpoint.background=false";
  REQUIRE(RunProgram("run " + tiny.recipe + kKept + four + " --out " + tiny.out + "_whole").exit_code == 0);
  EmulatedHosts hosts(tiny, "--fault rank=3,iteration=6,at=forward,kind=hang:60" + four,
                      {.nodes = 4, .spares = 2});
  REQUIRE_MESSAGE(WaitForFault(tiny.out), hosts.At(0).log());
  hosts.At(1).KillAll();
  hosts.At(3).KillAll();
  for (const int host : {0, 2, 4, 5}) CHECK_MESSAGE(hosts.At(host).Wait(60) == 0, hosts.At(host).log());
  CHECK_MESSAGE(Contains(hosts.At(0).log(), "/checkpoints/iteration_0000004 after iteration 4"),
                hosts.At(0).log());
  CHECK(LossesOf(tiny.out) == LossesOf(tiny.out + "_whole"));
  CHECK(!HasOrphans(tiny));
}

TEST_CASE(
    "fewer hosts: without a spare the run goes on with fewer data-parallel ranks, from the memory of those "
    "that are left") {
  const TinyRun tiny;
  // ZeRO's shards are on one rank and its partner's host; without it each rank has all.
  for (const std::string stage : {"0", "1", "3"}) {
    INFO("ZeRO " << stage);
    const std::string settings = fmt::format("{}--set parallelism.zero_stage={} ", kOfTwelve, stage);
    const std::string whole = tiny.out + "_whole" + stage;
    REQUIRE(RunProgram(fmt::format("run {}{}{}{}--set parallelism.dp=4 --out {}", tiny.recipe, kKept,
                                   settings, kEach, whole))
                .exit_code == 0);
    std::filesystem::remove_all(tiny.out);
    // None is on disk before the end.
    EmulatedHosts hosts(tiny,
                        "--min-nodes 3 --last-call-timeout 0.1 "
                        "--fault rank=0,iteration=6,at=forward,kind=hang:60 --set parallelism.dp=4" +
                            settings,
                        {.nodes = 4});
    REQUIRE_MESSAGE(WaitForFault(tiny.out), hosts.At(0).log());
    hosts.At(0).KillAll();  // the one that leads
    std::string log;
    for (const int host : {1, 2, 3}) {
      CHECK_MESSAGE(hosts.At(host).Wait(60) == 0, hosts.At(host).log());
      log += hosts.At(host).log();
    }
    CHECK_MESSAGE(
        Contains(log, "on 3 hosts instead of 4, with dp 3 instead of 4 and the same global batch; host "),
        log);
    // The copy of iteration 5 may not have been whole.
    const auto after = [&](int iteration) {
      return log.find(fmt::format("resumed from the hosts' memory after iteration {}, copied with dp 4\n",
                                  iteration)) != std::string::npos;
    };
    REQUIRE_MESSAGE((after(4) || after(5)), log);
    CheckAsByHand(tiny, whole, after(5) ? 5 : 4, settings, 3);
  }
  CHECK(!HasOrphans(tiny));
}

TEST_CASE("fewer hosts: two that are each other's partners are lost, and the run goes on from the disk") {
  const TinyRun tiny;
  const std::string settings = kOfTwelve + "--set training.global_batch=15 --set checkpoint.interval=2 ";
  const std::string whole = tiny.out + "_whole";
  REQUIRE(
      RunProgram("run " + tiny.recipe + kKept + settings + kEach + "--set parallelism.dp=5 --out " + whole)
          .exit_code == 0);
  EmulatedHosts hosts(tiny,
                      "--min-nodes 3 --last-call-timeout 0.1 "
                      "--fault rank=1,iteration=6,at=forward,kind=hang:60 --set parallelism.dp=5" +
                          settings,
                      {.nodes = 5});
  REQUIRE_MESSAGE(WaitForFault(tiny.out), hosts.At(0).log());
  hosts.At(1).KillAll();
  hosts.At(3).KillAll();
  for (const int host : {0, 2, 4}) CHECK_MESSAGE(hosts.At(host).Wait(60) == 0, hosts.At(host).log());
  const std::string log = hosts.At(0).log();
  CHECK_MESSAGE(Contains(log, "on 3 hosts instead of 5, with dp 3 instead of 5"), log);
  CHECK_MESSAGE(
      Contains(log, "in the hosts' memory are not gone on from: there is no copy of the state of rank 1\n"),
      log);
  CHECK_MESSAGE(Contains(log, "/checkpoints/iteration_0000004 after iteration 4"), log);
  CheckAsByHand(tiny, whole, 4, settings, 3);
  CHECK(!HasOrphans(tiny));
}

TEST_CASE(
    "spares: a rank that fails twice on a host has it replaced; the run's end, and a stop, reach spares") {
  const TinyRun tiny;
  EmulatedHosts hosts(
      tiny, "--fault rank=1,iteration=3,at=forward,kind=kill --fault rank=1,iteration=6,at=forward,kind=kill",
      {.nodes = 2, .spares = 1});
  for (const int host : {0, 1, 2}) CHECK_MESSAGE(hosts.At(host).Wait(60) == 0, hosts.At(host).log());
  CHECK_MESSAGE(Contains(hosts.At(1).log(), "was killed by signal 9 (Killed); restart 1 of 2 at once\n"),
                hosts.At(1).log());
  CHECK_MESSAGE(
      Contains(hosts.At(0).log(), "a rank of another host was lost; restart 2 of 2 at once; host 2 ("),
      hosts.At(0).log());
  CHECK(LossesOf(tiny.out).size() == 8);

  std::filesystem::remove_all(tiny.out);
  EmulatedHosts stopped(tiny, kEndless, {.nodes = 2, .spares = 1});
  REQUIRE(WaitForMetrics(tiny.out, 500));
  kill(stopped.At(1).pid(), SIGTERM);
  for (const int host : {0, 1, 2}) CHECK_MESSAGE(stopped.At(host).Wait(60) == 0, stopped.At(host).log());
  CHECK(Contains(stopped.At(0).log(), "stopped by a signal after iteration "));
  CHECK(!HasOrphans(tiny));
}

TEST_CASE("spares: a rank 0 that begins again waits for one that is not heard of to let the folder go") {
  const TinyRun tiny;
  Background run(tiny, "again",
                 "run " + tiny.recipe + kKept +
                     "--max-restarts 1 --fault rank=0,iteration=1,at=forward,kind=kill --out " + tiny.out);
  const auto pauses = [&] { return Contains(run.log(), "restart 1 of 1 in 1 s"); };
  for (int i = 0; i < 4000 && !pauses(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  REQUIRE_MESSAGE(pauses(), run.log());
  {
    const Descriptor folder(open(tiny.out.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    REQUIRE(flock(folder.number(), LOCK_EX | LOCK_NB) == 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(1400));  // rank 0 is there before this is over
  }
  CHECK_MESSAGE(run.Wait(60) == 0, run.log());
  // Who that is it says once: in this test the file names the process that was killed.
  const std::string log = run.log();
  const std::string told = "engine run: " + tiny.out + " is still held by ";
  const std::size_t at = log.find(told);
  REQUIRE_MESSAGE(at != std::string::npos, log);
  CHECK_MESSAGE(log.find(told, at + 1) == std::string::npos, log);
  const std::string line = log.substr(at, log.find('\n', at) - at);
  CHECK_MESSAGE(Contains(line, ", pid "), line);
  CHECK_MESSAGE(Contains(line, "it is waited for, up to 120 s"), line);
}

TEST_CASE(
    "spares: a host that comes back when the others have trained to the end, and gone, ends as they did") {
  const TinyRun tiny;
  EmulatedHosts hosts(tiny, "--heartbeat-timeout 1 --join-timeout 20", {.nodes = 2, .spares = 0});
  for (const int host : {0, 1}) REQUIRE_MESSAGE(hosts.At(host).Wait(60) == 0, hosts.At(host).log());
  for (const int host : {0, 1}) {  // the one that all others meet at, and one that meets nobody there
    hosts.Start(host);
    CHECK_MESSAGE(hosts.At(host).Wait(15) == 0, hosts.At(host).log());
    CHECK_MESSAGE(Contains(hosts.At(host).log(), "the run has come to its end while this host was not there"),
                  hosts.At(host).log());
  }
  // Where there is more to train it is not over.
  Background longer(
      tiny, "longer",
      fmt::format("run {}{} --set training.iterations=40 --heartbeat-timeout 1 --join-timeout 3 --nodes 2 "
                  "--node-rank 0 --coordinator 127.0.0.1:{} --max-restarts 2 --out {}",
                  tiny.recipe, kKept, FreePort(), tiny.out),
      "ENGINE_TOKEN=t");
  CHECK_MESSAGE(longer.Wait(30) == 5, longer.log());
  CHECK_MESSAGE(Contains(longer.log(), "2 hosts are needed, and 1 is here"), longer.log());
}

TEST_CASE("spares: an error of the recipe's, or of one host, ends the run on all, with its code") {
  const TinyRun tiny;
  EmulatedHosts hosts(tiny, "--fault rank=1,iteration=3,at=forward,kind=exit:1", {.nodes = 2, .spares = 1});
  for (const int host : {0, 1, 2}) CHECK_MESSAGE(hosts.At(host).Wait(60) == 1, hosts.At(host).log());
}

}  // namespace engine::launch
