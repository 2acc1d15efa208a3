// Checkpoints in memory, through the program: ranks that are killed go on from there.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cli/tiny_run.h"
#include "tests/launch/emulated_hosts.h"

namespace engine::launch {
namespace {

using cli::Contains;
using cli::ProgramResult;
using cli::RunProgram;
using cli::TinyRun;

std::size_t Count(const std::string& text, const std::string& of) {
  std::size_t count = 0;
  for (std::size_t at = text.find(of); at != std::string::npos; at = text.find(of, at + 1)) ++count;
  return count;
}

}  // namespace

TEST_CASE("checkpoints in memory: a host that is lost and comes back has its state from another host") {
  const TinyRun tiny;
  // ZeRO's shards are on one rank alone, and are sent; without it the other rank has the same state.
  for (const std::string stage : {"1", "0"}) {
    INFO("ZeRO " << stage);
    const std::string zero = "--set parallelism.zero_stage=" + stage;
    const std::string whole = tiny.out + "_whole" + stage;
    REQUIRE(RunProgram("run " + tiny.recipe + kKept + zero + " --out " + whole).exit_code == 0);
    std::filesystem::remove_all(tiny.out);
    EmulatedHosts hosts(tiny, "--fault rank=1,iteration=6,at=forward,kind=hang:60 " + zero, {.nodes = 2});
    REQUIRE_MESSAGE(WaitForFault(tiny.out), hosts.At(0).log());
    hosts.At(1).KillAll();
    hosts.Start(1);
    CHECK_MESSAGE(hosts.At(0).Wait(60) == 0, hosts.At(0).log());
    CHECK_MESSAGE(hosts.At(1).Wait(60) == 0, hosts.At(1).log());
    // The copy of iteration 5 may not have been whole.
    const auto counts = [&](int host, const std::string& text) {
      return Count(hosts.At(host).log(), fmt::format(fmt::runtime(text), 4)) +
             Count(hosts.At(host).log(), fmt::format(fmt::runtime(text), 5));
    };
    CHECK_MESSAGE(counts(0, "resumed from the hosts' memory after iteration {}\n") == 1, hosts.At(0).log());
    CHECK_MESSAGE(counts(1, "rank 1 has its state after iteration {} from the memory of another host\n") == 1,
                  hosts.At(1).log());
    CHECK(LossesOf(tiny.out) == LossesOf(whole));
    CHECK(ShardsOf(tiny.out, 8) == ShardsOf(whole, 8));
  }
  CHECK(!HasOrphans(tiny));
}

TEST_CASE("checkpoints in memory: without a partner a lost host takes its copies with it") {
  const TinyRun tiny;
  EmulatedHosts hosts(tiny,
                      "--fault rank=1,iteration=6,at=forward,kind=hang:60 --set checkpoint.interval=2 "
                      "--set checkpoint.background=false --set checkpoint.memory_partner=false",
                      {.nodes = 2});
  REQUIRE_MESSAGE(WaitForFault(tiny.out), hosts.At(0).log());
  hosts.At(1).KillAll();
  hosts.Start(1);
  CHECK_MESSAGE(hosts.At(0).Wait(60) == 0, hosts.At(0).log());
  CHECK_MESSAGE(Contains(hosts.At(0).log(), "/checkpoints/iteration_0000004 after iteration 4"),
                hosts.At(0).log());
}

TEST_CASE(
    "checkpoints in memory: ranks that are killed one after the other lose an iteration or two each, and no "
    "bit") {
  const TinyRun tiny;
  REQUIRE(RunProgram("run " + tiny.recipe + kKept + " --out " + tiny.out + "_whole").exit_code == 0);
  const ProgramResult run = RunProgram(
      "run " + tiny.recipe + kKept + "--max-restarts 2 --fault rank=1,iteration=4,at=exchange,kind=kill " +
      "--fault rank=0,iteration=8,at=forward,kind=kill --fresh --out " + tiny.out);
  REQUIRE_MESSAGE(run.exit_code == 0, run.output);
  // The copy of the last iteration may not have been whole.
  const auto resumed = [&](int iteration) {
    return Count(run.output, fmt::format("resumed from the hosts' memory after iteration {}\n", iteration));
  };
  CHECK_MESSAGE(resumed(2) + resumed(3) == 1, run.output);
  CHECK_MESSAGE(resumed(6) + resumed(7) == 1, run.output);
  CHECK(Count(run.output, " at once\n") == 2);
  CHECK(LossesOf(tiny.out) == LossesOf(tiny.out + "_whole"));
  CHECK(!HasOrphans(tiny));
}

TEST_CASE(
    "checkpoints in memory: a failure that comes again at the same place is no fault of the disk's "
    "checkpoint") {
  const TinyRun tiny;
  const ProgramResult run =
      RunProgram("run " + tiny.recipe + kKept +
                 "--set checkpoint.interval=2 --set checkpoint.background=false --max-restarts 9 " +
                 "--fault rank=1,iteration=6,at=forward,kind=kill,every=100 --out " + tiny.out);
  CHECK_MESSAGE(run.exit_code == 137, run.output);
  // From memory, then from the disk, and then it is left.
  CHECK_MESSAGE(Contains(run.output, "not started again: 3 failures without a checkpoint between them"),
                run.output);
  CHECK(Count(run.output, "resumed from the hosts' memory after iteration ") >= 1);
  CHECK(Count(run.output, "/checkpoints/iteration_0000004 after iteration 4") >= 1);
}

}  // namespace engine::launch
