#include "engine/data/blend.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

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

// Finds the data set that lags most. Of 16 data sets at a time it remembers how far they lagged at most when it last looked; since then
// that has grown by no more than the largest share a sample, and where that cannot reach the most of all it does not look.
class Laggards {
 public:
  explicit Laggards(std::span<const double> shares)
      : shares_(shares.begin(), shares.end()),
        counts_(shares.size(), 0),
        groups_((shares.size() + kSize - 1) / kSize) {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      for (std::size_t k = g * kSize; k < End(g); ++k)
        groups_[g].largest_share = std::max(groups_[g].largest_share, shares_[k]);
      groups_[g].bound_at_0 = std::numeric_limits<double>::infinity();
    }
  }

  // The first data set of those that lag most when `drawn` samples are; it is then one sample further.
  std::pair<std::size_t, std::int64_t> Take(double drawn) {
    // More than rounding moves a lag or a bound, of numbers up to `drawn`: four times 2^-53 · drawn.
    const double slack = drawn * 1e-15 + 1e-12;
    const auto bound = [&](const Group& group) {
      return group.bound_at_0 + group.largest_share * drawn + slack;
    };
    std::size_t likely = 0;
    for (std::size_t g = 1; g < groups_.size(); ++g) {
      if (bound(groups_[g]) > bound(groups_[likely])) likely = g;
    }
    Seen best = Look(likely, drawn);
    std::size_t of = likely;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      if (g == likely || bound(groups_[g]) < best.most) continue;
      const Seen seen = Look(g, drawn);
      if (seen.most < best.most || (seen.most == best.most && seen.set > best.set)) continue;
      best = seen;
      of = g;
    }
    Remember(of, std::max(best.second, best.most - 1), drawn);
    return {best.set, counts_[best.set]++};
  }

 private:
  static constexpr std::size_t kSize = 16;
  struct Group {
    double largest_share = 0;
    double bound_at_0 = 0;  // of how far one of them lags, less what it grows by since sample 0
  };
  struct Seen {
    std::size_t set = 0;  // the first of those that lag most
    double most = 0;
    double second = -std::numeric_limits<double>::infinity();  // how far the next one lags
  };

  std::size_t End(std::size_t group) const { return std::min((group + 1) * kSize, shares_.size()); }

  Seen Look(std::size_t group, double drawn) {
    const auto lag = [&](std::size_t k) { return shares_[k] * drawn - static_cast<double>(counts_[k]); };
    Seen seen = {.set = group * kSize, .most = lag(group * kSize)};
    for (std::size_t k = group * kSize + 1; k < End(group); ++k) {
      const double of = lag(k);
      if (of > seen.most) {
        seen.second = seen.most;
        seen.most = of;
        seen.set = k;
      } else {
        seen.second = std::max(seen.second, of);
      }
    }
    Remember(group, seen.most, drawn);
    return seen;
  }

  // When `drawn` samples are, none of the group lags more than `most`.
  void Remember(std::size_t group, double most, double drawn) {
    groups_[group].bound_at_0 = most - groups_[group].largest_share * drawn;
  }

  std::vector<double> shares_;
  std::vector<std::int64_t> counts_;
  std::vector<Group> groups_;
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
    const auto [set, sample] = laggards.Take(std::max(static_cast<double>(i), 1.0));
    index.datasets[i] = static_cast<std::int16_t>(set);
    index.samples[i] = sample;
  }
  return index;
}

}  // namespace engine::data
