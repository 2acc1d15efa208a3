// Checkpoints of a training run's ranks, which may be threads of one process or processes of their own.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>

#include "engine/checkpoint/metadata.h"
#include "engine/launch/rendezvous.h"
#include "engine/plan/plan.h"
#include "engine/state/ranks.h"

namespace engine::state {

// A checkpoint in two halves, so that iterations can run beside the second one. First, each rank's state is copied to the host's
// memory (executor/snapshot.h).
absl::Status BeginSave(Ranks& ranks);

// What has become of a checkpoint.
struct Saved {
  absl::Status failure;  // why there is none: the same on all ranks. Ok: it is whole on disk
};

// Second, from any thread: writes the copies of weights and the optimizer's states of all ranks as one checkpoint under `root`.
// Where ranks are processes, all call it with the same `key`, another each time: rank 0 begins and commits, the others write into its
// folder, on a file system that all share, and all return when all know how it ended. Nothing is left of a checkpoint that failed.
// Error: this rank alone has failed, or the run has ended.
absl::StatusOr<Saved> WriteSaved(const plan::Plan& plan, const std::string& root,
                                 const checkpoint::Metadata& metadata, const std::string& key, Ranks& ranks,
                                 launch::Client* processes);

// Both, at once. Error: either kind.
absl::Status SaveCheckpoint(const plan::Plan& plan, const std::string& root,
                            const checkpoint::Metadata& metadata, Ranks& ranks,
                            launch::Client* processes = nullptr);

}  // namespace engine::state
