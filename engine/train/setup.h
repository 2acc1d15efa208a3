// The steps of a run before its first iteration: what is checked, written and announced.
#pragma once

#include <cstdint>

#include "engine/train/memory_checkpoints.h"
#include "engine/train/resume.h"
#include "engine/train/run_context.h"
#include "engine/train/start.h"

namespace engine::train {

// Error: the recipe asks for what the device cannot do, a line for each.
absl::Status CheckLimits(const recipe::Recipe& recipe, const plan::DeviceProfile& device);
// Error: attention would be slow, which the recipe does not ask for (driver/check_kernels.h).
absl::Status CheckFast(const recipe::Recipe& recipe, const plan::Plan& plan);

// Bytes of the arenas of all ranks together.
std::int64_t ArenasBytes(const plan::Plan& plan);

// Whether `arenas_bytes`, which `ranks` ranks of this process need, are what it can have now; the compiler has
// asked whether the cluster's devices are large enough.
absl::Status CheckMemory(const RunContext& run, std::int64_t arenas_bytes, std::int64_t ranks);

// Writes the resolved recipe, the origin and the plan into the run's folder, and creates the checkpoints'.
absl::Status PrepareFolder(const RunContext& run);

RunFacts FactsOf(const RunContext& run);

// The log's first lines: plan, layout and data, and from where the run goes on, or from which weights it begins. `kept`: the state in
// the hosts' memory from which it does.
void Announce(const RunContext& run, const std::optional<KeptState>& kept,
              const std::optional<ResumePoint>& resume, const std::optional<StartPoint>& start);

}  // namespace engine::train
