// What a profiled iteration took, instruction by instruction, beside what is predicted of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/executor/executor.h"
#include "engine/recipe/recipe.h"

namespace engine::train {

using Timings = std::vector<executor::InstructionTiming>;

// A table by kernel, largest first: launches, measured milliseconds of an iteration, those that the plan's
// prediction takes for the same (predict/cost.h; 0 where the cluster file does not give rates), their ratio.
// Means over the iterations.
std::string ProfileTable(const plan::Plan& plan, const std::vector<Timings>& iterations,
                         const recipe::Cluster& cluster);

// An iteration of a rank as `engine plan --trace` writes a predicted one of its stage (predict/trace.h).
std::string MeasuredTrace(const plan::Plan& plan, std::int64_t rank, const Timings& iteration);

// Writes the table, and the last iteration as a trace, into the run's folder: profile.txt and trace.json of
// rank 0, profile-R.txt and trace-R.json of another. Returns the table.
absl::StatusOr<std::string> WriteProfile(const std::string& folder, const plan::Plan& plan, std::int64_t rank,
                                         const std::vector<Timings>& iterations,
                                         const recipe::Cluster& cluster);

}  // namespace engine::train
