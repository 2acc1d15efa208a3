// What the norms share. They run over the last dims of x, as many as gamma has: the normalised dims.
#pragma once

#include "engine/ops/common.h"

namespace engine::ops {

// How many dims of x lie before the normalised ones: at least 1. Not where gamma has not the last dims of x, or all of
// them.
inline absl::StatusOr<int> DimsBeforeNorm(const Shape& x, const Shape& gamma, std::string_view op) {
  const int lead = x.rank() - gamma.rank();
  bool same = gamma.rank() > 0 && lead > 0;
  for (int dim = 0; same && dim < gamma.rank(); ++dim) same = gamma[dim] == x[lead + dim];
  if (same) return lead;
  return Internal("{} of {} with gamma {}", op, x.ToString(), gamma.ToString());
}

}  // namespace engine::ops
