// The curves of a run in bounded memory, however many iterations it has.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "engine/metrics/quantities.h"

namespace engine::view {

// What was seen of a number: its extremes and its mean.
struct Range {
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  double sum = 0;
  std::int64_t count = 0;

  bool empty() const { return count == 0; }
  // Of equal numbers exactly these.
  double mean() const { return std::clamp(sum / static_cast<double>(count), min, max); }
  void Add(double value);
  void Merge(const Range& other);
};

// The quantities that have curves. Values are in the units of metrics.jsonl (docs/metrics.md).
inline constexpr std::array kCurves = {
    &metrics::kLoss,          &metrics::kGradNorm,    &metrics::kLearningRate,
    &metrics::kLossScale,     &metrics::kGlobalBatch, &metrics::kConsumedTokens,
    &metrics::kElapsed,       &metrics::kDataWait,    &metrics::kTokensPerSecond,
    &metrics::kTflops,        &metrics::kMfu,         &metrics::kMemoryBytes,
    &metrics::kValidationLoss};

// A stretch of iterations.
struct Bucket {
  std::int64_t first_iteration = 0, last_iteration = 0;  // of those that have a value in it; 0: none has
  double end_s =
      0;  // seconds of training from the first iteration of the run to the end of the last one here
  std::array<Range, kCurves.size()> ranges = {};

  // Of a quantity of kCurves.
  const Range& operator[](const metrics::Quantity& quantity) const;
};

// Iterations in buckets of equal length. When there are more than kMostBuckets, neighbours are joined and the length
// doubles, so that every extreme stays.
class History {
 public:
  static constexpr std::size_t kMostBuckets = 1024;

  // Takes a value of a quantity of kCurves. Iterations count from 1 and may come in any order; a value that is not
  // finite is left out.
  void Add(std::int64_t iteration, const metrics::Quantity& quantity, double value);
  // Notes how long training has taken until the end of the iteration.
  void SetTime(std::int64_t iteration, double end_s);

  // By iteration, those without a value left out, joined further so that they are at most `most`.
  std::vector<Bucket> Buckets(std::size_t most = kMostBuckets) const;

 private:
  Bucket& At(std::int64_t iteration);

  std::int64_t length_ = 1;  // iterations of a bucket
  std::vector<Bucket> buckets_;
};

// A histogram of a positive number with steps of 1 %, from which quantiles are read to 1 %: the mean of a step's numbers.
class Distribution {
 public:
  void Add(double value);
  bool empty() const { return count_ == 0; }
  // The value below which a share of all lies, 0 to 1; 0 where there is none.
  double Quantile(double share) const;

 private:
  static constexpr int kBins = 4200;  // 10^-6 to 10^12

  std::vector<Range> bins_ = std::vector<Range>(kBins);
  std::int64_t count_ = 0;
};

}  // namespace engine::view
