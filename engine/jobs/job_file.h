// Files that ask a scheduler for a run: what `engine launch` writes from [cluster] and [launch].
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/recipe/recipe.h"

namespace engine::jobs {

// slurm, pytorchjob, jobset, trainjob, mpijob, hyperpod.
std::span<const std::string> Schedulers();

// A scheduler that is told these codes starts the job again; docs/launch.md has a table of all.
inline constexpr int kStoppedCode = 143;  // stopped by a signal before the end
inline constexpr int kRetryCode = 144;    // another try may go well
// Of batch scripts, for which codes of 128 and more are signals.
inline constexpr int kBatchStoppedCode = 75;
inline constexpr int kBatchRetryCode = 76;

// What every kind of file needs to know of a run.
struct Job {
  std::string name;
  std::string recipe;
  std::string out;
  std::int64_t ranks = 1;
  std::int64_t nodes = 1;  // of the layout
  std::int64_t ranks_per_node = 1;
  bool gpus = false;
  std::int64_t max_restarts = 0, spares = 0, min_nodes = 0;  // as recipe::Launch has them

  std::int64_t all_nodes() const { return nodes + spares; }
  // Whether the run outlives a lost node, so that the scheduler must not end the job for it.
  bool outlives_nodes() const { return max_restarts > 0 && all_nodes() > 1; }
  // Options of engine run that say so; none where it does not start ranks again.
  std::vector<std::string> RestartOptions() const;
};

// Errors, located in the recipe where it can say more: a world that does not fill whole nodes, a job without a name that the scheduler
// takes, Kubernetes without an image, names that it refuses, volumes that are not CLAIM:/PATH or that meet at one place, network devices
// without a name, spares that nothing starts or that are too many, fewer nodes than more than half.
absl::StatusOr<Job> JobOf(const recipe::Recipe& recipe, const std::string& scheduler);

// The text of the file. Sources of the formats: docs/launch.md.
std::string JobFile(const recipe::Recipe& recipe, const Job& job, const std::string& scheduler);

// For people: what the scheduler will be asked for, line by line.
std::string Summary(const recipe::Recipe& recipe, const Job& job, const std::string& scheduler);

}  // namespace engine::jobs
