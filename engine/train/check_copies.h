// Whether the ranks of a run still have the same weights (guard.hash_interval), and which of them computed something wrong.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/status.h"
#include "engine/train/exchange_records.h"
#include "engine/train/run_context.h"

namespace engine::train {

// Whether copies are compared after this iteration, from 1: at the interval, and before a checkpoint is written.
bool CopiesAreCompared(const recipe::Recipe& recipe, std::int64_t iteration);

// Compares them; every process of the run calls it, and no iteration is under way. Error: state::CompareCopies, of the process
// that leads; the others go on until the run ends for it.
absl::Status CheckCopies(const RunContext& run, std::int64_t iteration);

// The same after numbers that show that a machine is at fault, as `failure` says, or may be, where that is OK. Returns `failure`, with the ranks'
// names where copies differ; the same in every process.
absl::Status NameRanks(const RunContext& run, std::int64_t iteration, const absl::Status& failure);

// The same of what ranks exchanged (guard.trace): `failure`, with whose fault it is, the same in every process. `exchanges`: of this process' ranks.
absl::Status NameExchange(const RunContext& run, std::int64_t iteration,
                          const std::vector<ExchangeRecords>& exchanges, const absl::Status& failure);

}  // namespace engine::train
