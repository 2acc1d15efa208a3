// What the parts of a run work with: set up once by run.cpp, then read by the loop, the evaluation, the reports
// and the checkpoints.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/fingerprint.h"
#include "engine/data/source.h"
#include "engine/evaluate/examples.h"
#include "engine/plan/plan.h"
#include "engine/train/bucket_claim.h"
#include "engine/train/bucket_put.h"
#include "engine/train/partner.h"
#include "engine/train/report.h"
#include "engine/train/run.h"

namespace engine::train {

using Clock = std::chrono::steady_clock;

inline double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

struct RunContext {
  const recipe::Recipe& recipe;
  const RunOptions& options;
  const state::Device& device;
  std::optional<data::Source> source = {};
  data::Fingerprints fingerprints = {};
  plan::Plan plan = {};
  std::optional<BucketClaim> claim =
      {};                     // rank 0's process, where checkpoints are kept in a bucket: its place there
  std::int64_t returns = 0;   // to checkpoints, that copies in memory know of (train/guard_notes.h)
  bool keeps_copies = false;  // of the ranks' states in their hosts' memory, as all processes do
  std::unique_ptr<Partner> partner = {};   // null: no other host has this rank's state
  std::vector<evaluate::Task> tasks = {};  // that each evaluation asks
  std::unique_ptr<state::Ranks> ranks =
      {};  // after the partner, whom copies under way go to, and the source and the plan, which its ranks may be reading until they end
  launch::Client* processes = nullptr;  // null: all ranks are this process's
  Reporter* reporter = nullptr;         // null: another process speaks for the run
  std::int64_t memory_interval =
      0;  // iterations between copies of the state in the host's memory; 0: none are made

  // Whether the state after this iteration, from 1, is copied into the host's memory.
  bool IsKept(std::int64_t iteration) const {
    return memory_interval > 0 && iteration % memory_interval == 0;
  }
  // Whether this process speaks for the run.
  bool Leads() const { return device.rank.value_or(0) == 0; }
  std::uint64_t Seed() const { return static_cast<std::uint64_t>(recipe.training.seed); }
  // Of a rank's executor among those of this process.
  size_t IndexOf(const executor::RankExecutor& rank) const;

  // This run's processes, which put a checkpoint into its bucket under this key, another one each time.
  PutTeam TeamFor(const std::string& key) const {
    return {.processes = processes,
            .rank = device.rank.value_or(0),
            .world = processes != nullptr ? plan.mesh.world() : 1,
            .key = key};
  }

  // Passes on an error that all ranks come to alike so that rank 0 alone tells of it: else whoever is first would be blamed, and rank 0 would take it for another's
  // failure, after which a run may be tried again.
  absl::Status OfAll(const absl::Status& status) const;
  void Say(const std::string& text) const;
  // This rank begins work of this kind, as `text` says: whoever waits for it learns how long that may take (launch/work.h).
  void Begin(launch::Work work, const std::string& text) const;
  // The report of an iteration, by whoever speaks for the run.
  void Tell(const IterationReport& report) const;
  // An error of the device's work, with what would say more. A GPU's error comes up in a call after the one
  // that caused it, and spoils all later ones.
  absl::Status OnDevice(const absl::Status& status, const std::string& work,
                        executor::RankExecutor& rank) const;
};

}  // namespace engine::train
