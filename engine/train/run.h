// A training run: plan, ranks, data, loop, evaluation, checkpoints, resume.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/recipe/recipe.h"
#include "engine/state/ranks.h"
#include "engine/train/fault.h"
#include "engine/train/stop_signals.h"

namespace engine::train {

// With the rank 0 of an attempt before, on a host that is not heard of any more, until the file system takes its lock away: NFS has
// leases of 90 s.
inline constexpr std::chrono::milliseconds kLockPatience = std::chrono::minutes(2);

struct RunOptions {
  std::string out;     // the run's folder: metrics.jsonl, resolved.toml, plan.json, origin.json, checkpoints/
  bool fresh = false;  // refuse a folder that already holds a run, instead of resuming it
  bool take_over =
      false;  // the recipe's place for checkpoints in a bucket, also from another run (train/bucket_claim.h)
  bool own_folder = false;   // `out` follows from the recipe file's name: refuse a run of another file there
  std::int64_t profile = 0;  // iterations to time instruction by instruction, after a few of warm-up
  executor::ExecutorOptions executor = {};
  StopOptions stop = {};
  std::vector<Fault> faults = {};  // that CheckFaults has found right
  // Of each rank of this process, a file (memfd_create(2)) for copies of its state that outlive it; none: nothing does.
  std::vector<int> memory_files = {};
  // Of a process that is a rank: where its host keeps copies of the states of other hosts' ranks (launch/copy_server.h).
  struct HostCopies {
    int port = 0;  // 0: it keeps none
    std::string token;
    std::string everywhere = {};  // where hosts keep them, spares too: "HOST:PORT,HOST:PORT"
  };
  HostCopies host_copies = {};
  bool from_disk = false;                      // whatever is in memory
  std::chrono::milliseconds lock_patience{0};  // with another run that holds the folder
  int processes = 1;                           // of this run that share this host
};

struct RunEnd {
  std::int64_t iteration = 0;  // the last
  bool stopped = false;        // by a signal, before the recipe's last
};

// The plan and the data of the recipe, to be refused before any rank is started.
absl::Status Check(const recipe::Recipe& recipe, const plan::DeviceProfile& device);

// Trains to the recipe's last iteration, from the newest whole checkpoint in `out` if there is one. SIGINT,
// SIGTERM and SIGHUP finish the iteration, save and return. An iteration whose loss or gradient norm is
// not finite ends the run with an error; its weights are not saved. Where ranks are processes, each calls it:
// they stop after the same iteration, whichever got the signal; rank 0 alone writes and prints.
// The outcome is written too, by rank 0.
absl::StatusOr<RunEnd> Run(const recipe::Recipe& recipe, const RunOptions& options,
                           const state::Device& device);

// Names inside the run's folder.

// The folder of a run's checkpoints.
std::string CheckpointRoot(const std::string& out);
// The same where `folder` is a run's; else `folder`, which may be one of checkpoints itself.
std::string CheckpointRootIn(const std::string& folder);

}  // namespace engine::train
