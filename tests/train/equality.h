// What two layouts of one model may differ by: the rounding of two summation orders.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/train/testing.h"

namespace engine::train::testing {

// Two float32 evaluations of the same formula in different summation orders. One product of length n has a
// relative error of at most n·ε against the sum of the terms' absolute values; the longest reductions here
// are over the 128 tokens of a global batch and the 300 classes, and a value passes some 40 operations on its
// way through 4 blocks forward and backward. Errors add up over them with random signs: √(300 · 40) ≈ 110
// roundings, of which a factor of 4 for the cancellation of terms and for what earlier iterations' weights
// differ.
inline constexpr double kBound = 4 * 110 * std::numeric_limits<float>::epsilon();

inline double LargestDifference(const std::vector<float>& a, const std::vector<float>& b, double* scale) {
  double largest = 0;
  *scale = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - b[i]));
    *scale = std::max(*scale, std::abs(static_cast<double>(a[i])));
  }
  return largest;
}

inline void CheckEqual(const Trained& expected, const Trained& actual) {
  REQUIRE(expected.names == actual.names);
  for (size_t p = 0; p < expected.names.size(); ++p) {
    INFO(expected.names[p]);
    CHECK(expected.initial[p] == actual.initial[p]);
  }
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    INFO("iteration " << i);
    CHECK(std::abs(expected.losses[i] - actual.losses[i]) <= kBound * std::abs(expected.losses[i]));
    CHECK(std::abs(expected.grad_norms[i] - actual.grad_norms[i]) <= kBound * expected.grad_norms[i]);
    double whole = 0;  // the largest gradient of the model: rounding of its activations reaches every tensor
    for (size_t p = 0; p < expected.names.size(); ++p) {
      double scale = 0;
      LargestDifference(expected.gradients[i][p], actual.gradients[i][p], &scale);
      whole = std::max(whole, scale);
    }
    for (size_t p = 0; p < expected.names.size(); ++p) {
      INFO(expected.names[p]);
      double scale = 0;
      const double difference = LargestDifference(expected.gradients[i][p], actual.gradients[i][p], &scale);
      CHECK(difference <= kBound * whole);
    }
  }
  CHECK(std::abs(expected.evaluations[0] - actual.evaluations[0]) <= kBound * expected.evaluations[0]);
}

}  // namespace engine::train::testing
