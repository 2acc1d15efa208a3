// Which products are of few rows, as generation has them (kernels/few_rows.h).
#pragma once

#include <cstdint>

#include "engine/base/dtype.h"

namespace engine::backend::cuda {

inline constexpr std::int64_t kMostFewRows = 16;

// Whether a product of these sizes is one for LaunchFewRows.
constexpr bool IsFewRows(DType dtype, DType made, std::int64_t rows, std::int64_t terms) {
  const bool is_half = dtype == DType::kBF16 || dtype == DType::kF16;
  return is_half && (made == dtype || made == DType::kF32) && rows <= kMostFewRows && terms % 8 == 0;
}

// Elements of x of which each block of a product makes the norm in front of it for itself.
inline constexpr std::int64_t kMostNormedElements = 16384;

}  // namespace engine::backend::cuda
