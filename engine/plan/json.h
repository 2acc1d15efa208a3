// A plan as JSON: plan.json of a run, `engine plan --json`.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "engine/plan/plan.h"

namespace engine::plan {

// Header, parameters' count, per stage chunks, buckets, memory (bytes of one rank) and traffic, and the
// schedule, turn by turn ("F3.1": forward pass of microbatch 3 through chunk 1).
nlohmann::ordered_json ToJson(const Plan& plan);

// What one rank runs: its coordinates, segments with their instructions, and programs. The rank must exist.
nlohmann::ordered_json RankToJson(const Plan& plan, std::int64_t rank);

}  // namespace engine::plan
