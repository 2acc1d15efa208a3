// Several hosts of a run as processes of this machine.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/cli/tiny_run.h"
#include "tests/launch/background.h"

namespace engine::launch {

// Of TinyRun's recipe: two ranks, with copies in memory after every iteration, and checkpoints on disk at the end alone.
inline constexpr const char* kKept =
    " --processes --set debug.faults=true --set parallelism.dp=2 --set parallelism.zero_stage=1 "
    "--set checkpoint.interval=0 --set checkpoint.memory=true --set checkpoint.memory_interval=1 ";

struct EmulatedHosts {
  struct Numbers {
    int nodes = 2, spares = 0;
  };
  // Starts all, as a batch script of SLURM does, with these settings and faults, and two restarts.
  EmulatedHosts(const cli::TinyRun& of, std::string more, Numbers numbers_of);
  void Start(int host);
  Background& At(int host) { return *hosts[static_cast<std::size_t>(host)]; }

  const cli::TinyRun& tiny;
  const std::string sets;
  const Numbers numbers;
  const int port = FreePort();
  int starts = 0;
  std::vector<std::unique_ptr<Background>> hosts;
};

// Until a fault is made: what is killed then is killed at a moment that is known. False: not within 20 s.
bool WaitForFault(const std::string& out);

// All shards of a checkpoint.
std::string ShardsOf(const std::string& out, int iteration);

}  // namespace engine::launch
