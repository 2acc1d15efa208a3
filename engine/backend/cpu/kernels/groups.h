// The rows of one expert (graph/rows.h), as place gives them.
#pragma once

#include <cstdint>

#include "engine/backend/kernel.h"

namespace engine::backend::cpu {

struct Group {
  std::int64_t first, rows;
};
// groups: i32 [E, 2].
inline Group GroupOf(const TensorView& groups, std::int64_t expert) {
  const auto* of_expert = groups.as<std::int32_t>() + 2 * expert;
  return {of_expert[0], of_expert[1]};
}

}  // namespace engine::backend::cpu
