// What differs from a layout in one choice, and why it loses.
#pragma once

#include <string>

#include "engine/search/search.h"

namespace engine::search {

// Whether `to` differs from `from` in one choice: a factor moved from one axis to another, or one other key.
bool IsNeighbour(const Layout& from, const Layout& to);

std::string MoveText(const Layout& from, const Layout& to);  // "tp 8 to 4, dp 4 to 8"

// `limit`: bytes of an arena; 0: not limited.
std::string WhyNot(const Found& best, const Found& found, std::int64_t limit,
                   SearchOptions::Objective objective);

}  // namespace engine::search
