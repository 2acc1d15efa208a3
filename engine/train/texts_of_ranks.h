// What each rank has to say, at rank 0, and what rank 0 has to say, at each.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/launch/rendezvous.h"
#include "engine/train/run_context.h"

namespace engine::train {

// Where ranks are processes: those of all ranks but 0, in their order, in rank 0's process, and none in others, which tell `own` there.
// Each may be of any length. All ranks call it with the same `key`, another each time.
absl::StatusOr<std::vector<std::string>> TextsOfRanks(const std::string& key, const std::string& own,
                                                      std::int64_t rank, std::int64_t world,
                                                      launch::Client& processes);

// What rank 0 says, in every process, at most 1 MiB less some bytes. All call it with the same `key`, another each time.
absl::StatusOr<std::string> TextOfRank0(const RunContext& run, const std::string& key,
                                        const std::string& own);

}  // namespace engine::train
