#include "engine/launch/supervisor.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sstream>
#include <thread>
#include <vector>

#include "engine/base/status.h"
#include "engine/launch/rendezvous.h"
#include "tests/cli/run_binary.h"
#include "tests/data/temp_dir.h"

namespace engine::launch {
namespace {

using cli::Contains;

constexpr int kPeerLost = 5;
constexpr int kStoppedCode = 6;

struct Outcome {
  int code = -1;
  std::string out, error;
  double seconds = 0;
};

std::string ReadAll(std::FILE* file) {
  std::rewind(file);
  std::string text;
  char buffer[4096];
  for (std::size_t got = 0; (got = std::fread(buffer, 1, sizeof(buffer), file)) > 0;)
    text.append(buffer, got);
  std::fclose(file);
  return text;
}

// Supervises `sh -c script` as each rank, in a process of its own, whose streams are caught. `then` runs
// beside.
Outcome Supervised(
    std::int64_t ranks, const std::string& script, bool all_output = false,
    const std::function<void(pid_t)>& then = [](pid_t) {}) {
  std::FILE* out = std::tmpfile();
  std::FILE* error = std::tmpfile();
  const Clock::time_point begin = Clock::now();
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(fileno(out), STDOUT_FILENO);
    dup2(fileno(error), STDERR_FILENO);
    absl::StatusOr<Descriptor> listener = Listen({"127.0.0.1", 0});
    SupervisorOptions options{.world = ranks + 2,
                              .local_size = ranks,
                              .coordinator = {"127.0.0.1", PortOf(*listener)},
                              .token = "secret",
                              .listener = *std::move(listener),
                              .all_output = all_output,
                              .program = "/bin/sh",
                              .arguments = {"sh", "-c", script}};
    // A thread that takes any signal, as a library may start one.
    std::thread([] {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_UNBLOCK, &all, nullptr);
      std::this_thread::sleep_for(std::chrono::minutes(1));
    }).detach();
    const absl::StatusOr<SupervisedEnd> end =
        Supervise(std::move(options), {.peer_lost = kPeerLost, .stopped = kStoppedCode});
    std::fflush(nullptr);
    _exit(end.ok() ? end->code : 99);
  }
  then(pid);
  int status = 0;
  waitpid(pid, &status, 0);
  Outcome outcome;
  outcome.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  outcome.out = ReadAll(out);
  outcome.error = ReadAll(error);
  return outcome;
}

}  // namespace

TEST_CASE("supervisor: each rank has its place, and its lines its name") {
  const std::string script =
      "echo $ENGINE_RANK/$ENGINE_WORLD_SIZE $ENGINE_LOCAL_RANK/$ENGINE_LOCAL_SIZE $ENGINE_TOKEN; "
      "[ $ENGINE_RANK = 0 ] || { printf 'half' >&2; sleep 0.1; }; echo ' line' >&2";
  const Outcome outcome = Supervised(2, script);
  CHECK(outcome.code == 0);
  CHECK(outcome.out == "0/4 0/2 secret\n");
  CHECK(Contains(outcome.error, " line\n"));
  CHECK(Contains(outcome.error, "rank 1: half line\n"));
  const Outcome all = Supervised(2, script, true);
  CHECK(Contains(all.out, "0/4 0/2 secret\n"));
  CHECK(Contains(all.out, "rank 1: 1/4 1/2 secret\n"));
}

TEST_CASE("supervisor: ranks that stopped before the end have not failed") {
  CHECK(Supervised(2, "exit 6").code == kStoppedCode);
  CHECK(Supervised(2, "[ $ENGINE_RANK = 0 ] && exit 6; exit 0").code == kStoppedCode);
  CHECK(Supervised(2, "[ $ENGINE_RANK = 0 ] && exit 6; sleep 0.2; exit 4").code == 4);
}

TEST_CASE("supervisor: the listener is open in rank 0 alone") {
  const Outcome outcome = Supervised(
      2,
      "if [ -n \"$ENGINE_LISTENER\" ]; then [ -e /proc/self/fd/$ENGINE_LISTENER ] && echo open; fi;"
      "[ $ENGINE_RANK = 0 ] || [ -z \"$ENGINE_LISTENER\" ] || exit 7");
  CHECK(outcome.code == 0);
  CHECK(outcome.out == "open\n");
}

TEST_CASE("supervisor: the first that fails by itself gives code and verdict, before what others say of it") {
  const Outcome outcome = Supervised(
      4,
      "case $ENGINE_RANK in 1) sleep 0.3; echo 'engine run: no data' >&2; exit 4;; 0|3) sleep 0.1; echo "
      "'engine "
      "run: rank 1 was lost\n    for 1 s' >&2; exit 5;; 2) sleep 0.6; echo 'engine run: I too' >&2; echo 'no "
      "reason' >&2; exit 1;; esac");
  CHECK(outcome.code == 4);
  std::istringstream lines(outcome.error);
  std::vector<std::string> said;
  for (std::string line; std::getline(lines, line);) said.push_back(line);
  REQUIRE_MESSAGE(said.size() == 6, outcome.error);
  CHECK(said[0] == "rank 1: engine run: no data");
  CHECK(said[1].starts_with("engine run: rank 1 (pid "));
  CHECK(said[1].ends_with(") ended with exit code 4"));
  CHECK((said[2].ends_with("engine run: rank 1 was lost") && said[3] == "    for 1 s"));  // once
  CHECK(Contains(outcome.error, "rank 2: engine run: I too\n"));
  CHECK(Contains(outcome.error, "rank 2: no reason\n"));
  CHECK(outcome.seconds < 3);
  const Outcome elsewhere = Supervised(2, "exit 5");
  CHECK(elsewhere.code == kPeerLost);
  CHECK(elsewhere.error.empty());
}

TEST_CASE("supervisor: rank 0 ended before it heard what had failed; those that wait to join hear it") {
  const data::TempDir folder;
  const std::string file = folder / "coordinator";
  std::string heard;
  const Outcome outcome = Supervised(
      2, "[ $ENGINE_RANK = 0 ] || exit 4; echo $ENGINE_COORDINATOR > " + file + "; sleep 0.5; exit 5", false,
      [&](pid_t) {
        std::string address;
        for (int i = 0; i < 2000 && !address.ends_with("\n"); ++i) {
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
          address = data::ReadFile(file);
        }
        const absl::StatusOr<Endpoint> endpoint = ParseEndpoint(address.substr(0, address.find('\n')));
        REQUIRE(endpoint.ok());
        const Member member{
            .rank = 2, .world = 4, .build = "b", .plan_hash = "p", .device = "d", .process = "host, pid 9"};
        heard = Message(Client::Join(*endpoint, "secret", member, {.join_timeout = std::chrono::seconds(10)},
                                     [](const absl::Status&) {})
                            .status());
      });
  CHECK(outcome.code == 4);
  CHECK_MESSAGE(heard.ends_with(") ended with exit code 4"), heard);
}

TEST_CASE("supervisor: a rank that is killed; what ignores SIGTERM is killed too") {
  const Outcome outcome = Supervised(3,
                                     "case $ENGINE_RANK in 0) trap '' TERM; sleep 60 & wait; sleep 60;; 1) "
                                     "kill -9 $$;; 2) exec sleep 60;; esac");
  CHECK(outcome.code == 128 + SIGKILL);
  CHECK(outcome.error.starts_with("engine run: rank 1 (pid "));
  CHECK(Contains(outcome.error, ") was killed by signal 9 (Killed)\n"));
  CHECK(Contains(outcome.error, "engine run: rank 0 (pid "));
  CHECK(outcome.seconds > 7);
  CHECK(outcome.seconds < 10);
}

TEST_CASE("supervisor: SIGTERM is passed on") {
  const Outcome outcome = Supervised(
      2, "trap 'echo saved $ENGINE_RANK >&2; exit 0' TERM; echo $$ >&2; while :; do sleep 0.05; done", false,
      [](pid_t pid) {
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
        kill(pid, SIGTERM);
      });
  CHECK(outcome.code == 0);
  CHECK(Contains(outcome.error, "saved 0\n"));
  CHECK(Contains(outcome.error, "rank 1: saved 1\n"));
}

TEST_CASE("supervisor: killed, it leaves no orphans") {
  const std::string mark = fmt::format("4{}.25", getpid());  // a sleep that is ours
  const auto alive = [&] { return system(("pgrep -f 'sleep " + mark + "$' >/dev/null").c_str()) == 0; };
  const Outcome outcome = Supervised(2, "exec sleep " + mark, false, [&](pid_t pid) {
    for (int i = 0; i < 100 && !alive(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(alive());
    kill(pid, SIGKILL);
  });
  CHECK(outcome.code == 1000 + SIGKILL);
  for (int i = 0; i < 100 && alive(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(!alive());
}

TEST_CASE("supervisor: a program that cannot be started") {
  SupervisorOptions options;
  options.program = "/nowhere/engine";
  options.arguments = {"engine"};
  const absl::StatusOr<SupervisedEnd> end =
      Supervise(std::move(options), {.peer_lost = kPeerLost, .stopped = kStoppedCode});
  CHECK(Message(end.status()) == "/nowhere/engine cannot be started as rank 0: No such file or directory");
}

TEST_CASE("supervisor: arguments and tokens") {
  CHECK(OwnArguments().size() >= 1);
  CHECK(RandomToken()->size() == 32);
  CHECK(*RandomToken() != *RandomToken());
}

}  // namespace engine::launch
