#include "engine/data/temporary_file.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "tests/data/temp_dir.h"

namespace engine::data {
namespace {

// Ends a process by the signal while it has two temporary files; its wait status.
int EndBySignal(const TempDir& dir, int signal_number, bool ignored) {
  const pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    signal(signal_number, ignored ? SIG_IGN : SIG_DFL);
    RemoveTemporaryFilesOnSignals();
    { const TemporaryFile before(dir / "before"); }
    const TemporaryFile first(dir / "first");
    const TemporaryFile second(dir / "second");
    WriteFile(first.path(), "x");
    WriteFile(second.path(), "x");
    WriteFile(dir / "before", "of another");
    raise(signal_number);
    _exit(7);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return status;
}

}  // namespace

TEST_CASE("temporary files go with their owner") {
  const TempDir dir;
  {
    const TemporaryFile file(dir / "file");
    WriteFile(file.path(), "x");
    CHECK(dir.entries() == 1);
  }
  CHECK(dir.entries() == 0);
}

TEST_CASE("temporary files go with a process that a signal ends, and the signal ends it") {
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) {
    CAPTURE(signal_number);
    const TempDir dir;
    const int status = EndBySignal(dir, signal_number, false);
    CHECK(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == signal_number);
    CHECK(dir.entries() == 1);  // that of no TemporaryFile any more
  }
}

TEST_CASE("a signal that is ignored, as by nohup, stays ignored") {
  const TempDir dir;
  const int status = EndBySignal(dir, SIGHUP, true);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 7);
}

}  // namespace engine::data
