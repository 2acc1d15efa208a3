#include "engine/data/blend.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "engine/base/status.h"

namespace engine::data {
namespace {

// numpy.sum of float64 (pairwise_sum in numpy/core/src/umath/loops_utils.h.src): the last bit of a weight
// decides ties in the blend, so the order of additions is kept.
double PairwiseSum(std::span<const double> values) {
  constexpr std::size_t kLanes = 8;
  constexpr std::size_t kBlock = 128;
  if (values.size() > kBlock) {
    const std::size_t half = values.size() / 2 / kLanes * kLanes;
    return PairwiseSum(values.first(half)) + PairwiseSum(values.subspan(half));
  }
  double sum = 0.0;
  std::size_t done = 0;
  if (values.size() >= kLanes) {
    std::array<double, kLanes> lane;
    std::copy_n(values.begin(), kLanes, lane.begin());
    for (done = kLanes; done + kLanes <= values.size(); done += kLanes) {
      for (std::size_t i = 0; i < kLanes; ++i) lane[i] += values[done + i];
    }
    sum = ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
  }
  for (; done < values.size(); ++done) sum += values[done];
  return sum;
}

}  // namespace

absl::StatusOr<std::vector<double>> NormalizeWeights(std::span<const double> weights) {
  for (double weight : weights) {
    // The greedy rule would draw from a data set of weight 0 too, whenever all others are exactly on their
    // shares.
    if (!std::isfinite(weight) || weight <= 0.0) {
      return InvalidArgument(
          "weight {} of a data set must be finite and above 0; leave out what is not wanted", weight);
    }
  }
  const double sum = PairwiseSum(weights);
  if (!std::isfinite(sum)) return InvalidArgument("the weights of {} data sets overflow", weights.size());
  std::vector<double> normalized(weights.begin(), weights.end());
  for (double& weight : normalized) weight /= sum;
  return normalized;
}

std::int64_t BlendTarget(std::int64_t size, double weight) {
  return static_cast<std::int64_t>(std::ceil(static_cast<double>(size) * weight));
}

std::int64_t BlendBuiltSize(std::int64_t target) {
  constexpr double kSurplus = 0.005;
  return static_cast<std::int64_t>(std::ceil(static_cast<double>(target) * (1.0 + kSurplus)));
}

absl::StatusOr<BlendIndex> BuildBlendIndex(std::span<const double> weights, std::int64_t size) {
  if (weights.size() > std::numeric_limits<std::int16_t>::max()) {
    return InvalidArgument("{} data sets in one blend, at most {} are possible", weights.size(),
                           std::numeric_limits<std::int16_t>::max());
  }
  if (weights.empty()) return InvalidArgument("a blend of no data sets");
  constexpr std::int64_t kMaxSamples = std::int64_t{1} << 32;  // 10 bytes each
  if (size < 0 || size > kMaxSamples) {
    return ResourceExhausted("a blend of {} samples; at most {} are possible", size, kMaxSamples);
  }
  ASSIGN_OR_RETURN(const std::vector<double> shares, NormalizeWeights(weights));
  BlendIndex index;
  index.datasets.resize(static_cast<std::size_t>(size));
  index.samples.resize(static_cast<std::size_t>(size));
  std::vector<std::int64_t> counts(shares.size(), 0);
  for (std::size_t i = 0; i < index.datasets.size(); ++i) {
    const double drawn = std::max(static_cast<double>(i), 1.0);
    std::size_t best = 0;
    double largest_lag = shares[0] * drawn - static_cast<double>(counts[0]);
    for (std::size_t k = 1; k < shares.size(); ++k) {
      const double lag = shares[k] * drawn - static_cast<double>(counts[k]);
      if (lag > largest_lag) {
        largest_lag = lag;
        best = k;
      }
    }
    index.datasets[i] = static_cast<std::int16_t>(best);
    index.samples[i] = counts[best]++;
  }
  return index;
}

}  // namespace engine::data
