// What befalls the process itself: streams that are closed, readers that go, too little memory.
#include "engine/cli/process.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "tests/cli/tiny_run.h"

namespace engine::cli {
namespace {

const std::string kForms[] = {"", " --processes"};

// A file of the run that another stream's text has got into would have other lines.
void CheckMetrics(const std::string& out) {
  std::istringstream lines(data::ReadFile(out + "/metrics.jsonl"));
  int count = 0;
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    REQUIRE_MESSAGE(json.is_object(), line);
    if (json.contains("loss")) ++count;  // others are of checkpoints
    CHECK(json["iteration"] == count);
  }
  CHECK(count == 8);
  CHECK(RunProgram("checkpoint info --verify " + out + "/checkpoints/iteration_0000008").exit_code == 0);
}

// The program with a standard output whose reader has gone. Its exit code; −1 where a signal ended it.
int RunUnread(const std::string& arguments, const std::string& errors) {
  std::array<int, 2> ends{};
  REQUIRE(pipe(ends.data()) == 0);
  close(ends[0]);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(ends[1], STDOUT_FILENO);
    execl("/bin/sh", "sh", "-c", ("exec " ENGINE_BINARY " " + arguments + " 2>" + errors).c_str(), nullptr);
    _exit(127);
  }
  close(ends[1]);
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_CASE("process: closed standard streams, whose numbers no file of the run takes") {
  const TinyRun tiny;
  int number = 0;
  for (const std::string& form : kForms) {
    for (const std::string closed : {"<&- >&- 2>&-", "2>&-", ">&-", "<&-"}) {
      INFO(form << " " << closed);
      const std::string out = tiny.out + std::to_string(number++);
      const ProgramResult result =
          RunShell("(exec " ENGINE_BINARY " run " + tiny.recipe + " --set parallelism.dp=2 --threads 2" +
                   form + " --set logging.interval=1 --out " + out + " " + closed + ")");
      CHECK_MESSAGE(result.exit_code == 0, result.output);
      CheckMetrics(out);
    }
  }
}

TEST_CASE("process: a run whose output nobody reads goes on to its end, saves, and says so") {
  const TinyRun tiny;
  for (const std::string& form : kForms) {
    INFO(form);
    const std::string out = tiny.out + (form.empty() ? "_threads" : "_processes");
    const std::string errors = tiny.folder / "errors";
    CHECK(RunUnread("run " + tiny.recipe + " --set parallelism.dp=2 --threads 2" + form + " --out " + out,
                    errors) == 1);
    CHECK(Contains(data::ReadFile(errors), "engine: standard output could not be written\n"));
    CheckMetrics(out);
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which need address space without end
TEST_CASE("process: too little memory is said, with exit code 1, whichever thread finds out") {
  const TinyRun tiny;
  const auto limited = [&](int mib, const std::string& more) {
    return RunShell("(ulimit -v " + std::to_string(mib * 1024) + "; exec " ENGINE_BINARY " run " +
                    tiny.recipe +
                    " --set parallelism.dp=2 --set checkpoint.final_patience=0 --threads 4 --out " +
                    tiny.out + std::to_string(mib) + more + ")");
  };
  const auto is_told = [](const std::string& output) {
    for (const char* reason :
         {"not enough memory", "no more threads can be started", "this machine starts no more than",
          " does not fit in", ", but the limit on address space (ulimit -v) leaves "}) {
      if (output.find(reason) != std::string::npos) return true;
    }
    return false;
  };
  for (const std::string& form : kForms) {
    int told = 0;
    for (int mib = 150; mib < 1200; mib += mib / 6) {
      INFO(mib << form);
      const ProgramResult result = limited(mib, form);
      if (result.exit_code == 127) continue;  // too little for the program's libraries
      if (result.exit_code == 0) continue;
      ++told;
      CHECK_MESSAGE(result.exit_code == 1, result.output);
      CHECK_MESSAGE(is_told(result.output), result.output);
    }
    CHECK(told > 0);
  }
  const ProgramResult arena = limited(3000, " --set model.mlp.hidden=8388608");
  CHECK(arena.exit_code == 1);
  CHECK(Contains(arena.output, "engine run: 2 ranks need arenas of "));
  CHECK(Contains(arena.output, " together, but the limit on address space (ulimit -v) leaves "));
  CHECK(Contains(arena.output, " of memory for the cpu executor; on stage 0, "));
}
#endif

}  // namespace engine::cli
