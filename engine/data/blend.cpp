#include "engine/data/blend.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

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

// Takes one sample after the other from the data set that lags most behind its share. Samples are taken in blocks, and within a block only
// those data sets are looked at that one of its samples can come from. Which ones these are: let `least` be a lag that at least kBlock
// data sets have when the block begins. Before any sample of the block fewer than kBlock have been taken, so that one of those data sets
// has given none yet and lags by `least` or more, as lags only grow meanwhile. So whatever is taken lags by `least` or more, and a data
// set that cannot come to lag so much within the block cannot be taken from.
class Laggards {
 public:
  explicit Laggards(std::span<const double> shares)
      : shares_(shares.begin(), shares.end()), counts_(shares.size(), 0), lags_(shares.size()) {}

  static constexpr std::size_t kBlock = 32;

  // Finds the data sets that samples [begin, begin + kBlock) may come from.
  void BeginBlock(std::size_t begin) {
    for (const Candidate& candidate : candidates_) counts_[candidate.set] = candidate.count;
    const double drawn = Drawn(begin);
    for (std::size_t k = 0; k < shares_.size(); ++k) lags_[k] = shares_[k] * drawn - counts_[k];
    const double least = Least();
    const double ahead = static_cast<double>(kBlock);
    // More than rounding moves a lag of numbers up to `drawn`: four times 2^-53 · drawn.
    const double slack = (drawn + ahead) * 1e-15 + 1e-12;
    candidates_.clear();
    for (std::size_t k = 0; k < shares_.size(); ++k) {
      if (lags_[k] + shares_[k] * ahead + slack < least) continue;
      candidates_.push_back({.share = shares_[k], .count = counts_[k], .set = static_cast<std::int16_t>(k)});
    }
  }

  // Sample i, one of the block: a data set, and which of its samples. Of several that lag most the first is taken.
  std::pair<std::int16_t, std::int64_t> Take(std::size_t i) {
    const double drawn = Drawn(i);
    Candidate* most = &candidates_.front();
    double lag = most->share * drawn - most->count;
    for (Candidate& candidate : std::span(candidates_).subspan(1)) {
      const double of = candidate.share * drawn - candidate.count;
      if (of <= lag) continue;
      lag = of;
      most = &candidate;
    }
    const auto sample = static_cast<std::int64_t>(most->count);
    most->count += 1;
    return {most->set, sample};
  }

 private:
  struct Candidate {
    double share = 0;
    double count = 0;
    std::int16_t set = 0;
  };

  static double Drawn(std::size_t sample) { return std::max(static_cast<double>(sample), 1.0); }

  // A lag that at least kBlock data sets have, and few more than that. The answer for the block before is kept while it is still one.
  double Least() {
    if (lags_.size() <= kBlock) return -std::numeric_limits<double>::infinity();
    const auto lagging = static_cast<std::size_t>(
        std::count_if(lags_.begin(), lags_.end(), [&](double lag) { return lag >= least_; }));
    if (lagging < kBlock || lagging > 3 * kBlock) {
      sorted_ = lags_;
      const auto at = sorted_.begin() + static_cast<std::ptrdiff_t>(std::min(2 * kBlock, sorted_.size()) - 1);
      std::nth_element(sorted_.begin(), at, sorted_.end(), std::greater<>());
      least_ = *at;
    }
    return least_;
  }

  std::vector<double> shares_;
  std::vector<double> counts_;  // below 2^53; those of candidates are in candidates_
  std::vector<double> lags_;
  std::vector<double> sorted_;
  std::vector<Candidate> candidates_;
  double least_ = std::numeric_limits<double>::infinity();
};

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
  Laggards laggards(shares);
  for (std::size_t i = 0; i < index.datasets.size(); ++i) {
    if (i % Laggards::kBlock == 0) laggards.BeginBlock(i);
    std::tie(index.datasets[i], index.samples[i]) = laggards.Take(i);
  }
  return index;
}

}  // namespace engine::data
