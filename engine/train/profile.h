// What a profiled iteration took, instruction by instruction, beside what is predicted of it.
#pragma once

#include <string>
#include <vector>

#include "engine/executor/executor.h"
#include "engine/recipe/recipe.h"

namespace engine::train {

using Timings = std::vector<executor::InstructionTiming>;

// A table by kernel, largest first: launches, measured milliseconds of an iteration, those that the plan's
// prediction takes for the same (plan/cost.h; 0 where the cluster file does not give rates), their ratio.
// Means over the iterations.
std::string ProfileTable(const plan::Plan& plan, const std::vector<Timings>& iterations,
                         const recipe::Cluster& cluster);

// The last iteration as `engine plan --trace` writes a predicted one (plan/trace.h). Of rank 0.
std::string MeasuredTrace(const plan::Plan& plan, const Timings& iteration);

// Writes profile.txt and trace.json into the run's folder; returns the table.
absl::StatusOr<std::string> WriteProfile(const std::string& folder, const plan::Plan& plan,
                                         const std::vector<Timings>& iterations,
                                         const recipe::Cluster& cluster);

}  // namespace engine::train
