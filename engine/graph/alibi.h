// Slopes of attention's linear biases (ALiBi; Press et al., arXiv:2108.12409).
#pragma once

#include <cmath>
#include <cstdint>

namespace engine::graph {

// log2 of the slope of head `head` of `heads`, whole tensors counted. A power of two, n heads have the slopes 2^(−8·1/n),
// 2^(−8·2/n), …, 2^(−8). Of other numbers the first n heads, n the largest power of two below, have these, and the rest
// every other one of 2n heads, from the first on (as in the paper's code, BLOOM and MPT).
constexpr double AlibiExponent(std::int64_t head, std::int64_t heads) {
  std::int64_t n = 1;
  while (2 * n <= heads) n *= 2;
  const std::int64_t step = head < n ? 2 * (head + 1) : 2 * (head - n) + 1;  // of 2n
  return -4.0 * static_cast<double>(step) / static_cast<double>(n);
}

inline double AlibiSlope(std::int64_t head, std::int64_t heads) {
  return std::exp2(AlibiExponent(head, heads));
}

}  // namespace engine::graph
