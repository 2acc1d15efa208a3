// What a profiled iteration took, instruction by instruction, beside what the plan predicts.
#pragma once

#include <string>
#include <vector>

#include "engine/executor/executor.h"
#include "engine/recipe/recipe.h"

namespace engine::train {

using Timings = std::vector<executor::InstructionTiming>;

// Seconds that an instruction should take at the cluster's rates: the larger of its FLOPs over matmul_flops
// and the bytes of its inputs and outputs over memory_bandwidth; 0 where the cluster file does not give them.
double PredictedSeconds(const plan::Instruction& instruction, const recipe::Cluster& cluster);

// A table by kernel, largest first: launches, measured and predicted milliseconds an iteration, their ratio.
// Means over the iterations.
std::string ProfileTable(const std::vector<Timings>& iterations, const recipe::Cluster& cluster);

// The last iteration in Chrome's trace event format (chrome://tracing, Perfetto).
std::string ChromeTrace(const Timings& iteration);

// Writes profile.txt and trace.json into the run's folder; returns the table.
absl::StatusOr<std::string> WriteProfile(const std::string& folder, const std::vector<Timings>& iterations,
                                         const recipe::Cluster& cluster);

}  // namespace engine::train
