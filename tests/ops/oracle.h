// Tensors that oracles' scripts (tests/oracles) make too, and comparison with what these printed.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/ops/tensor.h"

namespace engine::ops_test {

// Element i is sin(seed + 1.7·i), in float64.
inline Tensor MadeBySine(const Shape& shape, double seed) {
  Tensor tensor({shape, DType::kF64});
  for (std::int64_t i = 0; i < tensor.elements(); ++i)
    tensor.Set(i, std::sin(seed + 1.7 * static_cast<double>(i)));
  return tensor;
}

// Within 1e-13 of the oracle's numbers: both sides sum fewer than 50 terms below 10 in float64.
template <std::size_t kCount>
void CheckOracle(const std::string& what, const Tensor& tensor, const double (&expected)[kCount]) {
  INFO(what);
  REQUIRE(tensor.elements() == static_cast<std::int64_t>(kCount));
  double worst = 0;
  for (std::size_t i = 0; i < kCount; ++i)
    worst = std::max(worst, std::fabs(tensor.Get(static_cast<std::int64_t>(i)) - expected[i]));
  CHECK(worst < 1e-13);
}

}  // namespace engine::ops_test
