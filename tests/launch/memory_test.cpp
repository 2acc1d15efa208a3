// Checkpoints in memory, through the program: ranks that are killed go on from there.
#include <doctest/doctest.h>
#include <fmt/format.h>

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

constexpr const char* kKept =
    " --processes --set debug.faults=true --set parallelism.dp=2 --set parallelism.zero_stage=1 "
    "--set checkpoint.interval=0 --set checkpoint.memory=true --set checkpoint.memory_interval=1 ";

std::size_t Count(const std::string& text, const std::string& of) {
  std::size_t count = 0;
  for (std::size_t at = text.find(of); at != std::string::npos; at = text.find(of, at + 1)) ++count;
  return count;
}

}  // namespace

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
