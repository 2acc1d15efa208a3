// What signals, and a terminal that goes, do to runs of one process and of several.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <regex>
#include <sstream>
#include <string>
#include <thread>

#include "engine/launch/socket.h"
#include "tests/cli/tiny_run.h"
#include "tests/launch/background.h"

namespace engine::launch {
namespace {

using cli::Contains;
using cli::ProgramResult;
using cli::RunProgram;
using cli::TinyRun;

const std::string kForms[] = {"", " --processes"};
// Iterations of a few milliseconds, or one that takes minutes.
constexpr const char* kMany = " --set training.iterations=200000 --set checkpoint.interval=0";
constexpr const char* kLong = " --set training.iterations=1 --set training.global_batch=1000000";

bool Eventually(double seconds, const std::function<bool()>& holds) {
  const Clock::time_point end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  while (!holds()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

// Time that a process has computed for, in clock ticks (of 10 ms).
long TicksOf(pid_t pid) {
  std::istringstream stat(data::ReadFile("/proc/" + std::to_string(pid) + "/stat"));
  std::string word;
  long user = 0;
  long system = 0;
  for (int field = 1; field <= 13; ++field) stat >> word;
  stat >> user >> system;
  return user + system;
}

// A run in the middle of its first iteration, which takes minutes.
void AwaitFirstIteration(const Background& run, bool processes) {
  REQUIRE_MESSAGE(Eventually(60, [&] { return run.log().find("ready: ") != std::string::npos; }), run.log());
  const pid_t rank = processes ? run.children().at(0) : run.pid();
  const long ready = TicksOf(rank);
  constexpr long kSome = 30;  // more than what is left to do before the iteration
  REQUIRE(Eventually(60, [&] { return TicksOf(rank) > ready + kSome; }));
}

std::string OutOf(const TinyRun& tiny, const std::string& form) {
  return tiny.out + (form.empty() ? "_threads" : "_processes");
}

std::string Arguments(const TinyRun& tiny, const std::string& form, const std::string& settings) {
  return "run " + tiny.recipe + " --set parallelism.dp=2 --threads 2 --out " + OutOf(tiny, form) + form +
         settings;
}

bool IsWhole(const std::string& out) {
  const ProgramResult verified =
      RunProgram("checkpoint info --verify " + out + "/checkpoints/" + NewestCheckpoint(out));
  return !NewestCheckpoint(out).empty() && verified.exit_code == 0;
}

}  // namespace

TEST_CASE(
    "signals: each that stops a run says at once after which iteration, which is the last and is saved") {
  const TinyRun tiny;
  for (const std::string& form : kForms) {
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
      INFO(form << " " << number);
      std::filesystem::remove_all(OutOf(tiny, form));
      Background run(tiny, fmt::format("{}{}", form.size(), number), Arguments(tiny, form, kMany));
      REQUIRE_MESSAGE(WaitForMetrics(OutOf(tiny, form), 1500), run.log());
      kill(run.pid(), number);
      kill(run.pid(), number == SIGTERM ? SIGINT : SIGTERM);  // two for one, as some launchers send them
      CHECK_MESSAGE(run.Wait(60) == 0, run.log());
      const std::string log = run.log();
      std::smatch said;
      REQUIRE_MESSAGE(
          std::regex_search(log, said,
                            std::regex("(?:^|\n)finishing iteration (\\d+), then saving; again to "
                                       "stop at once\n")),
          log);
      CHECK(log.find("finishing", static_cast<std::size_t>(said.position() + said.length())) ==
            std::string::npos);
      CHECK(Contains(log, "stopped by a signal after iteration " + said[1].str() + "\n"));
      CHECK(NewestCheckpoint(OutOf(tiny, form)).ends_with("0" + said[1].str()));
      CHECK(IsWhole(OutOf(tiny, form)));
    }
  }
  CHECK(!HasOrphans(tiny));
}

TEST_CASE("signals: the second one stops at once, saves nothing, and is the exit code") {
  const TinyRun tiny;
  for (const std::string& form : kForms) {
    for (const int number : {SIGINT, SIGTERM}) {
      INFO(form << " " << number);
      std::filesystem::remove_all(OutOf(tiny, form));
      Background run(tiny, fmt::format("{}{}", form.size(), number), Arguments(tiny, form, kLong));
      AwaitFirstIteration(run, !form.empty());
      kill(run.pid(), number);
      CHECK_MESSAGE(
          Eventually(20, [&] { return run.log().find("finishing iteration 1, then") != std::string::npos; }),
          run.log());
      std::this_thread::sleep_for(std::chrono::milliseconds(700));  // what comes within 0.5 s is of the first
      kill(run.pid(), SIGHUP);                                      // insists on nothing
      kill(run.pid(), number);
      CHECK_MESSAGE(run.Wait(20) == 128 + number, run.log());
      CHECK(Contains(run.log(), "stopped at once: "));
      CHECK(run.log().find("engine run: ") == std::string::npos);  // nothing has failed
      CHECK(NewestCheckpoint(OutOf(tiny, form)).empty());
      CHECK(!HasOrphans(tiny));
    }
  }
}

TEST_CASE("signals: a SIGHUP that is ignored from the beginning stays so") {
  const TinyRun tiny;
  for (const std::string& form : kForms) {
    const std::string out = OutOf(tiny, form);
    Background run(tiny, fmt::format("log{}", form.size()), Arguments(tiny, form, kMany), "", "nohup");
    REQUIRE_MESSAGE(WaitForMetrics(out, 1500), run.log());
    kill(run.pid(), SIGHUP);
    for (const pid_t rank : run.children()) kill(rank, SIGHUP);
    REQUIRE_MESSAGE(WaitForMetrics(out, std::filesystem::file_size(out + "/metrics.jsonl") + 1500),
                    run.log());
    CHECK(run.log().find("finishing") == std::string::npos);
    kill(run.pid(), SIGTERM);
    CHECK_MESSAGE(run.Wait(60) == 0, run.log());
  }
}

TEST_CASE("signals: a rank of a launcher leaves it to that to end it at once") {
  const TinyRun tiny;
  Background run(
      tiny, "log", "run " + tiny.recipe + " --out " + tiny.out + kLong,
      "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + std::to_string(FreePort()));
  AwaitFirstIteration(run, false);
  kill(run.pid(), SIGTERM);
  CHECK(Eventually(
      20, [&] { return run.log().find("finishing iteration 1, then saving\n") != std::string::npos; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  kill(run.pid(), SIGTERM);
  CHECK(run.Wait(1) == -1);
}

TEST_CASE("signals: a terminal that goes stops a run, which saves although it cannot be told") {
  const TinyRun tiny;
  for (const std::string& form : kForms) {
    INFO(form);
    const std::string out = OutOf(tiny, form);
    int terminal = -1;
    const pid_t pid = forkpty(&terminal, nullptr, nullptr, nullptr);
    if (pid == 0) {
      execl("/bin/sh", "sh", "-c", ("exec " ENGINE_BINARY " " + Arguments(tiny, form, kMany)).c_str(),
            nullptr);
      _exit(127);
    }
    fcntl(terminal, F_SETFL, O_NONBLOCK);
    CHECK(Eventually(60, [&] {
      char bytes[4096];
      while (read(terminal, bytes, sizeof(bytes)) > 0) {  // what is not read holds the run up
      }
      std::error_code error;
      return std::filesystem::file_size(out + "/metrics.jsonl", error) >= 1500 && !error;
    }));
    close(terminal);
    int status = 0;
    CHECK(Eventually(60, [&] { return waitpid(pid, &status, WNOHANG) == pid; }));
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 1);  // as what it said at the end could not be written
    CHECK(IsWhole(out));
  }
  CHECK(!HasOrphans(tiny));
}

TEST_CASE("signals: those that end a run are taken by a thread that computes nothing") {
  constexpr std::uint64_t kTaken = 1ULL << (SIGINT - 1) | 1ULL << (SIGTERM - 1) | 1ULL << (SIGHUP - 1);
  const TinyRun tiny;
  const auto check = [&](pid_t process) {
    int taking = 0;
    int threads = 0;
    for (const auto& task : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", process))) {
      std::istringstream status(data::ReadFile(task.path() / "status"));
      std::string name;
      bool has_ended = false;
      for (std::string line; std::getline(status, line);) {
        if (line.starts_with("Name:\t")) name = line.substr(6);
        if (line == "Threads:\t0") has_ended = true;  // and has no mask any more
        if (has_ended || !line.starts_with("SigBlk:\t")) continue;
        const bool takes = name == "engine-signals";
        INFO(name << " " << line);
        CHECK((std::stoull(line.substr(8), nullptr, 16) & kTaken) == (takes ? 0 : kTaken));
        ++threads;
        taking += takes ? 1 : 0;
      }
    }
    CHECK(taking == 1);
    CHECK(threads > 1);
  };
  for (const std::string form : {"", " --processes"}) {
    INFO(form);
    std::filesystem::remove_all(tiny.out);
    Background run(tiny, form.empty() ? "threads" : "processes",
                   "run " + tiny.recipe + form + kEndless + " --set parallelism.dp=2 --out " + tiny.out);
    REQUIRE_MESSAGE(WaitForMetrics(tiny.out, 500), run.log());
    check(run.pid());
    for (const pid_t rank : run.children()) check(rank);
    kill(run.pid(), SIGTERM);
    CHECK_MESSAGE(run.Wait(30) == 0, run.log());
    CHECK(Contains(run.log(), "stopped by a signal after iteration "));
  }
}

}  // namespace engine::launch
