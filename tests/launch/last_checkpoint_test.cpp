// The checkpoint with which a run of several processes ends, where the disk is full: no file grows beyond a limit (RLIMIT_FSIZE), until the test lifts it.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/launch/stop_requests.h"
#include "tests/cli/tiny_run.h"
#include "tests/launch/background.h"

namespace engine::launch {
namespace {

using cli::Contains;
using cli::RunProgram;
using cli::TinyRun;

constexpr const char* kFull = "sh -c 'trap \"\" XFSZ; ulimit -S -f 80; exec \"$@\"' sh";  // 40 KiB
constexpr const char* kTwo =
    " --set parallelism.dp=2 --set parallelism.zero_stage=1 --device cpu --threads 1";
constexpr const char* kWaits = "it is tried again for ";

bool HasSaid(const Background& run, const std::string& text) {
  return run.log().find(text) != std::string::npos;
}

// Waits for one of these texts in its log; false: not within 60 s.
bool Says(const Background& run, const std::string& text, const std::string& other = "") {
  const auto says = [&] { return HasSaid(run, text) || (!other.empty() && HasSaid(run, other)); };
  for (int i = 0; i < 12000 && !says(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return says();
}

void MakeRoom(pid_t process) {
  const rlimit none{.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
  REQUIRE(prlimit(process, RLIMIT_FSIZE, &none, nullptr) == 0);
}

std::string LastShardsOf(const std::string& out) {
  return data::ReadFile(out + "/checkpoints/iteration_0000008/rank_00000.h5") +
         data::ReadFile(out + "/checkpoints/iteration_0000008/rank_00001.h5");
}

}  // namespace

TEST_CASE("last checkpoint: all processes wait for room, and save what they would have saved") {
  const TinyRun tiny;
  const std::string run = "run " + tiny.recipe + kTwo + " --processes --out " + tiny.out;
  REQUIRE(RunProgram(run + "_whole").exit_code == 0);
  Background full(tiny, "full", run, "", kFull);
  REQUIRE_MESSAGE(Says(full, kWaits), full.log());
  std::this_thread::sleep_for(std::chrono::seconds(2));
  for (const pid_t rank : full.children()) MakeRoom(rank);
  CHECK_MESSAGE(full.Wait(60) == 0, full.log());
  CHECK(Contains(full.log(), "saved checkpoint of iteration 8"));
  CHECK(LastShardsOf(tiny.out) == LastShardsOf(tiny.out + "_whole"));
  CHECK(!HasOrphans(tiny));
}

TEST_CASE("last checkpoint: the wait is no hang, and a rank that is lost meanwhile ends it for all") {
  const TinyRun tiny;
  Background full(tiny, "full",
                  "run " + tiny.recipe + kTwo + " --processes --hang-timeout 5 --out " + tiny.out, "", kFull);
  REQUIRE_MESSAGE(Says(full, kWaits), full.log());
  // Tries are after 1, 3, 7 and 15 s, the last pause longer than --hang-timeout; the next one is after 31 s.
  std::this_thread::sleep_for(std::chrono::seconds(17));
  CHECK(full.log().find("the run hangs") == std::string::npos);
  const std::vector<pid_t> ranks = full.children();
  REQUIRE_MESSAGE(ranks.size() == 2, full.log());
  kill(ranks[1], SIGKILL);
  CHECK(full.Wait(12) == 128 + SIGKILL);
  CHECK(!HasOrphans(tiny));
}

TEST_CASE("last checkpoint: when the wait is over all processes end with the error") {
  const TinyRun tiny;
  Background full(
      tiny, "full",
      "run " + tiny.recipe + kTwo + " --processes --set checkpoint.final_patience=1 --out " + tiny.out, "",
      kFull);
  CHECK_MESSAGE(full.Wait(60) == 1, full.log());
  CHECK(Contains(full.log(), "engine run: "));
  CHECK(Contains(full.log(), "saving the checkpoint of iteration 8: "));
  CHECK(!HasOrphans(tiny));
}

TEST_CASE("last checkpoint: the wait goes on after a signal, and ends at once with a second one") {
  const TinyRun tiny;
  for (const std::string processes : {"", " --processes"}) {
    INFO(processes);
    const std::string name = processes.empty() ? "threads" : "processes";
    const std::string out = tiny.out + name;
    Background full(tiny, name, "run " + tiny.recipe + kTwo + processes + " --out " + out, "", kFull);
    REQUIRE_MESSAGE(Says(full, kWaits), full.log());
    kill(full.pid(), SIGTERM);
    REQUIRE_MESSAGE(Says(full, "finishing iteration 8, then saving; again to stop at once"), full.log());
    REQUIRE_MESSAGE(full.Wait(1.5) == -1, full.log());
    kill(full.pid(), SIGTERM);
    CHECK(full.Wait(20) == 128 + SIGTERM);
    CHECK(Contains(full.log(), kStoppedAtOnce));
    // The disk is full for every file that is longer: how the run ended is still told.
    CHECK(Contains(data::ReadFile(out + "/outcome.json"), kStoppedAtOnce));
    CHECK(!HasOrphans(tiny));
  }
}

TEST_CASE("last checkpoint: of processes without a supervisor one that is asked twice ends the run") {
  const TinyRun tiny;
  std::unique_ptr<Background> first;
  std::unique_ptr<Background> second;
  // Another program may take the port before the run does.
  for (int tries = 1; tries <= 5; ++tries) {
    const int port = FreePort();
    const auto rank = [&](int number) {
      return std::make_unique<Background>(tiny, fmt::format("rank{}-{}", number, tries),
                                          "run " + tiny.recipe + kTwo + " --out " + tiny.out,
                                          RankVariables(number, 2, port), kFull);
    };
    first = rank(0);
    second = rank(1);
    REQUIRE_MESSAGE(Says(*first, kWaits, "is taken by another program"), first->log());
    if (HasSaid(*first, kWaits)) break;
  }
  REQUIRE_MESSAGE(HasSaid(*first, kWaits), first->log());
  kill(second->pid(), SIGTERM);
  REQUIRE_MESSAGE(first->Wait(1.5) == -1, first->log());
  kill(second->pid(), SIGTERM);
  CHECK(second->Wait(20) == 1);
  CHECK_MESSAGE(first->Wait(20) == 5, first->log());
  CHECK_MESSAGE(Contains(first->log(), ") failed: saving the checkpoint of iteration 8: "), first->log());
}

}  // namespace engine::launch
