// A plan for people: what `engine plan` prints.
#pragma once

#include <string>
#include <vector>

#include "engine/plan/plan.h"

namespace engine::plan {

// Header (mesh, batch, hash, notes); per stage layers, parameters, FLOPs of an iteration and the itemised
// arena; what a rank sends by collective and axis; the schedule as a timeline. Equal neighbouring stages
// share a row. Bytes, counts and FLOPs are of one rank.
std::string Summary(const Plan& plan);

// "dp 8 × tp 8 × pp 16 × cp 1 × ep 1 = 1024 ranks"
std::string MeshText(const Mesh& mesh);

// Rows as lines: columns are right-aligned but the first, and two spaces apart. Code points count as one column.
std::string Table(const std::vector<std::vector<std::string>>& rows);

// A table of the stages' rows, with equal neighbours joined; a first column says which stages.
std::string StageTable(std::vector<std::string> header, const std::vector<std::vector<std::string>>& stages);

}  // namespace engine::plan
