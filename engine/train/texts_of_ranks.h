// What each rank has to say, at rank 0.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/launch/rendezvous.h"

namespace engine::train {

// Where ranks are processes: those of all ranks but 0, in their order, in rank 0's process, and none in others, which tell `own` there.
// Each may be of any length. All ranks call it with the same `key`, another each time.
absl::StatusOr<std::vector<std::string>> TextsOfRanks(const std::string& key, const std::string& own,
                                                      std::int64_t rank, std::int64_t world,
                                                      launch::Client& processes);

}  // namespace engine::train
