// Runs of the program in the background, and what a test looks at afterwards.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/cli/tiny_run.h"

namespace engine::launch {

// The program in the background, in a process group of its own, its output in a file; killed at the end.
class Background {
 public:
  Background(const cli::TinyRun& tiny, const std::string& name, const std::string& arguments,
             const std::string& environment = "", const std::string& before = "");
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // Of one that has ended there is none, and that ends the test: kill(2) would take what it has instead for all processes of the machine.
  pid_t pid() const;
  // SIGKILL to all processes of its group, as where a host is lost.
  void KillAll();
  std::string log() const;
  std::vector<pid_t> children() const;
  // The exit code, or −1 where it has not ended by then and is killed.
  int Wait(double seconds);

 private:
  std::string log_;
  pid_t pid_ = -1;
};

// Until a run has written so much; false: not within 60 s.
bool WaitForMetrics(const std::string& out, std::uintmax_t bytes);

// Whether processes that have this folder in their arguments outlive 10 seconds.
bool HasOrphans(const cli::TinyRun& tiny);

// "iteration_0000008"; empty: there is none.
std::string NewestCheckpoint(const std::string& out);

// Losses and norms of a run's iterations, in order: equal texts are equal bits.
std::vector<std::string> LossesOf(const std::string& out);

inline constexpr const char* kEndless =
    " --set training.iterations=200000 --set checkpoint.interval=2 --set checkpoint.keep=2";

int FreePort();

// Variables of a rank that is started by hand.
std::string RankVariables(int rank, int world, int port, const std::string& token = "t");

}  // namespace engine::launch
