// How the elements of a tensor are spread.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>

#include "engine/base/status.h"

namespace engine {

// Counts elements in buckets whose limits grow by a tenth: those of TensorFlow's histograms (tensorflow/core/lib/histogram/histogram.cc):
// 1e-12 · 1.1^n up to 1e20 and the largest double, the same below zero, and zero. A bucket begins with the limit of the one before.
class Histogram {
 public:
  void Add(std::span<const float> values);
  void Add(const Histogram& other);

  // Elements that are finite; of them the sums, the least and the largest (+∞ and −∞ where there are none).
  std::int64_t count() const { return count_; }
  std::int64_t not_finite() const { return not_finite_; }
  double sum() const { return sum_; }
  double sum_of_squares() const { return sum_of_squares_; }
  double min() const { return min_; }
  double max() const { return max_; }
  // Elements by the number of their bucket, of those that have some.
  const std::map<int, std::int64_t>& buckets() const { return buckets_; }
  // Where a bucket ends, which is no part of it.
  static double LimitOf(int bucket);

  // As text, and back, to the same bits.
  std::string ToText() const;
  static absl::StatusOr<Histogram> FromText(const std::string& text);

 private:
  std::int64_t count_ = 0, not_finite_ = 0;
  double sum_ = 0, sum_of_squares_ = 0;
  double min_ = std::numeric_limits<double>::infinity(), max_ = -min_;
  std::map<int, std::int64_t> buckets_;
};

}  // namespace engine
