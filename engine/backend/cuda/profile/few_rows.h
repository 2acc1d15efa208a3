// Which products are of few rows, as generation has them (kernels/few_rows.h).
#pragma once

#include <cstdint>

#include "engine/base/dtype.h"
#include "engine/base/shape.h"

namespace engine::backend::cuda {

inline constexpr std::int64_t kMostFewRows = 16;

// Whether a product of these sizes is one for LaunchFewRows.
constexpr bool IsFewRows(DType dtype, DType made, std::int64_t rows, std::int64_t terms) {
  const bool is_half = dtype == DType::kBF16 || dtype == DType::kF16;
  return is_half && (made == dtype || made == DType::kF32) && rows <= kMostFewRows && terms % 8 == 0;
}

// The same, known of x alone: its last dim are the terms, or some of them where several dims are contracted.
inline bool HasFewRows(DType dtype, const Shape& x) {
  const std::int64_t terms = x[x.rank() - 1];
  return terms > 0 && IsFewRows(dtype, dtype, x.elements() / terms, terms);
}

}  // namespace engine::backend::cuda
