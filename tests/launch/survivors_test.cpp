// Processes of ranks that outlive an attempt: their place in the next one, and that they are the same processes.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/print.h"
#include "engine/launch/next_place.h"
#include "engine/launch/supervisor.h"
#include "tests/cli/tiny_run.h"
#include "tests/launch/background.h"

namespace engine::launch {
namespace {

using cli::TinyRun;

bool Within(double seconds, const std::function<bool()>& is) {
  const auto end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  while (Clock::now() < end) {
    if (is()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return is();
}

// A file in memory with this content.
Descriptor FileOf(const std::string& content) {
  Descriptor file(memfd_create("test", MFD_CLOEXEC));
  REQUIRE(write(file.number(), content.data(), content.size()) == std::ssize(content));
  return file;
}

std::string ContentOf(int file) {
  std::string content(1000, '\0');
  content.resize(
      static_cast<std::size_t>(std::max<ssize_t>(0, pread(file, content.data(), content.size(), 0))));
  return content;
}

// A process that waits for a place and then says, on its standard output, what it has been given.
pid_t StartWaiting(const Descriptor& theirs, PlaceGiver& places) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  places.Close();
  setenv("ENGINE_RANK", "3", 1);
  setenv("ENGINE_RESTART", "1", 1);
  setenv("ENGINE_NEXT_PLACE", "7", 1);
  const auto arguments = AwaitNextPlace(theirs.number());
  if (!arguments) _exit(9);
  const auto value = [](const char* name) {
    return std::string(std::getenv(name) == nullptr ? "-" : std::getenv(name));
  };
  Print(stdout,
        "{} arguments, the last of {} bytes; rank {}, restart {}, next {}; memory '{}', listener '{}'",
        arguments->size(), arguments->back().size(), value("ENGINE_RANK"), value("ENGINE_RESTART"),
        value("ENGINE_NEXT_PLACE"), ContentOf(std::atoi(value("ENGINE_MEMORY").c_str())),
        ContentOf(std::atoi(value("ENGINE_LISTENER").c_str())));
  std::fflush(stdout);
  _exit(0);
}

}  // namespace

TEST_CASE("survivors: a process gets variables, descriptors and standard output of its next place") {
  std::fflush(stdout);
  Descriptor theirs;
  absl::StatusOr<PlaceGiver> places = PlaceGiver::Make(&theirs);
  REQUIRE(places.ok());
  CHECK(!places->HasAsked());
  const pid_t pid = StartWaiting(theirs, *places);
  theirs.Close();
  CHECK(Within(20, [&] { return places->HasAsked(); }));
  CHECK(!places->HasAsked());  // once
  const Descriptor out = FileOf("");
  const Descriptor memory = FileOf("a state");
  const Descriptor listener = FileOf("a listener");
  // More than a socket takes at once.
  const NextPlace place{.arguments = {"engine", std::string(std::size_t{3} << 20, 'x')},
                        .variables = {"ENGINE_RANK=0", "ENGINE_MEMORY=-5"}};
  CHECK(places->Give(place, out.number(),
                     {{"ENGINE_LISTENER", listener.number()}, {"ENGINE_MEMORY", memory.number()}}));
  int status = -1;
  REQUIRE(waitpid(pid, &status, 0) == pid);
  CHECK(status == 0);
  CHECK(ContentOf(out.number()) ==
        "2 arguments, the last of 3145728 bytes; rank 0, restart -, next 7; memory 'a state', listener 'a "
        "listener'");
}

TEST_CASE("survivors: one for which there is no place ends, and so does one that ignores it") {
  Descriptor theirs;
  absl::StatusOr<PlaceGiver> places = PlaceGiver::Make(&theirs);
  REQUIRE(places.ok());
  const pid_t waits = StartWaiting(theirs, *places);
  theirs.Close();
  const pid_t sleeps = fork();
  if (sleeps == 0) {
    for (;;) pause();
  }
  const auto begin = Clock::now();
  {
    Survivors survivors;
    survivors.Add(0, {.pid = waits, .places = *std::move(places), .error = {}});
    survivors.Add(2, {.pid = sleeps, .places = {}, .error = {}});
    CHECK(!survivors.Take(1).has_value());
  }
  CHECK(Clock::now() - begin < std::chrono::seconds(20));
  CHECK(kill(waits, 0) != 0);
  CHECK(kill(sleeps, 0) != 0);
}

TEST_CASE("survivors: one that has died meanwhile has no place") {
  const pid_t pid = fork();
  if (pid == 0) _exit(0);
  siginfo_t info;
  REQUIRE(waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) == 0);
  Survivors survivors;
  survivors.Add(0, {.pid = pid, .places = {}, .error = {}});
  CHECK(!survivors.Take(0).has_value());
}

TEST_CASE("survivors: one that a signal has stopped has no place, and is ended") {
  const pid_t pid = fork();
  if (pid == 0) {
    for (;;) pause();
  }
  kill(pid, SIGSTOP);
  int status = 0;
  REQUIRE(waitpid(pid, &status, WUNTRACED) == pid);
  Survivors survivors;
  survivors.Add(0, {.pid = pid, .places = {}, .error = {}});
  CHECK(!survivors.Take(0).has_value());
  CHECK(kill(pid, 0) != 0);
}

TEST_CASE("survivors: one that fails by itself is replaced, and a new process that does ends the run") {
  const TinyRun tiny;
  const std::string run =
      "run " + tiny.recipe +
      " --set debug.faults=true --set parallelism.dp=2 --processes --max-restarts 3 --out ";
  const std::string exits = " --fault rank=0,iteration=6,kind=exit:1";
  const cli::ProgramResult kept =
      cli::RunProgram(run + tiny.out + " --fault rank=1,iteration=3,kind=kill" + exits);
  CHECK_MESSAGE(kept.exit_code == 0, kept.output);
  const cli::ProgramResult fresh = cli::RunProgram(run + tiny.out + "_fresh" + exits);
  CHECK_MESSAGE(fresh.exit_code == 1, fresh.output);
}

TEST_CASE("survivors: whichever rank is killed, the others train on in their processes") {
  const TinyRun tiny;
  const std::string out = tiny.out;
  Background run(
      tiny, "log",
      "run " + tiny.recipe + kEndless +
          " --set parallelism.dp=2 --set checkpoint.memory=true --processes --max-restarts 100 --out " + out);
  const auto trains_on = [&] {
    std::error_code error;
    return WaitForMetrics(out, std::filesystem::file_size(out + "/metrics.jsonl", error) + 4000);
  };
  REQUIRE_MESSAGE(WaitForMetrics(out, 4000), run.log());
  std::vector<pid_t> ranks = run.children();
  REQUIRE(ranks.size() == 2);
  for (const std::size_t lost : {1, 0, 0, 1}) {
    INFO("rank " << lost << " of " << ranks[0] << " and " << ranks[1]);
    kill(ranks[lost], SIGKILL);
    std::vector<pid_t> after;
    REQUIRE_MESSAGE(Within(20,
                           [&] {
                             after = run.children();
                             return after.size() == 2 &&
                                    std::find(after.begin(), after.end(), ranks[lost]) == after.end();
                           }),
                    run.log());
    CHECK(std::find(after.begin(), after.end(), ranks[1 - lost]) != after.end());
    REQUIRE_MESSAGE(trains_on(), run.log());
    ranks[lost] = after[0] == ranks[1 - lost] ? after[1] : after[0];
  }
  kill(run.pid(), SIGTERM);
  CHECK_MESSAGE(run.Wait(30) == 0, run.log());
  CHECK(!HasOrphans(tiny));
}

}  // namespace engine::launch
