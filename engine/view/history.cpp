#include "engine/view/history.h"

#include <cmath>
#include <iterator>

#include "engine/base/status.h"

namespace engine::view {
namespace {

constexpr double kSmallest = 1e-6;
constexpr double kRatio = 1.01;

std::size_t IndexOf(const metrics::Quantity& quantity) {
  const auto found = std::find(kCurves.begin(), kCurves.end(), &quantity);
  ENGINE_CHECK(found != kCurves.end(), "a quantity without a curve: {}", quantity.help);
  return static_cast<std::size_t>(std::distance(kCurves.begin(), found));
}

bool IsEmpty(const Bucket& bucket) { return bucket.first_iteration == 0; }

void Merge(const Bucket& from, Bucket& into) {
  if (IsEmpty(from)) return;
  if (IsEmpty(into)) {
    into = from;
    return;
  }
  into.first_iteration = std::min(into.first_iteration, from.first_iteration);
  into.last_iteration = std::max(into.last_iteration, from.last_iteration);
  into.end_s = std::max(into.end_s, from.end_s);
  for (std::size_t i = 0; i < into.ranges.size(); ++i) into.ranges[i].Merge(from.ranges[i]);
}

// Every `factor` neighbours in one.
std::vector<Bucket> Joined(const std::vector<Bucket>& buckets, std::size_t factor) {
  std::vector<Bucket> joined((buckets.size() + factor - 1) / factor);
  for (std::size_t i = 0; i < buckets.size(); ++i) Merge(buckets[i], joined[i / factor]);
  return joined;
}

}  // namespace

void Range::Add(double value) {
  min = std::min(min, value);
  max = std::max(max, value);
  sum += value;
  ++count;
}

void Range::Merge(const Range& other) {
  min = std::min(min, other.min);
  max = std::max(max, other.max);
  sum += other.sum;
  count += other.count;
}

const Range& Bucket::operator[](const metrics::Quantity& quantity) const { return ranges[IndexOf(quantity)]; }

void History::Add(std::int64_t iteration, const metrics::Quantity& quantity, double value) {
  if (iteration < 1 || !std::isfinite(value)) return;
  Bucket& bucket = At(iteration);
  bucket.first_iteration = IsEmpty(bucket) ? iteration : std::min(bucket.first_iteration, iteration);
  bucket.last_iteration = std::max(bucket.last_iteration, iteration);
  bucket.ranges[IndexOf(quantity)].Add(value);
}

void History::SetTime(std::int64_t iteration, double end_s) {
  if (iteration < 1) return;
  Bucket& bucket = At(iteration);
  bucket.end_s = std::max(bucket.end_s, end_s);
}

Bucket& History::At(std::int64_t iteration) {
  while ((iteration - 1) / length_ >= static_cast<std::int64_t>(kMostBuckets)) {
    buckets_ = Joined(buckets_, 2);
    length_ *= 2;
  }
  const auto index = static_cast<std::size_t>((iteration - 1) / length_);
  if (index >= buckets_.size()) buckets_.resize(index + 1);
  return buckets_[index];
}

std::vector<Bucket> History::Buckets(std::size_t most) const {
  std::vector<Bucket> buckets;
  std::copy_if(buckets_.begin(), buckets_.end(), std::back_inserter(buckets),
               [](const Bucket& bucket) { return !IsEmpty(bucket); });
  return buckets.size() <= most ? buckets : Joined(buckets, (buckets.size() + most - 1) / most);
}

void Distribution::Add(double value) {
  if (!(value > 0) || !std::isfinite(value)) return;
  const double bin = std::clamp(std::log(value / kSmallest) / std::log(kRatio), 0.0, kBins - 1.0);
  bins_[static_cast<std::size_t>(bin)].Add(value);
  ++count_;
}

double Distribution::Quantile(double share) const {
  const auto wanted = static_cast<std::int64_t>(share * static_cast<double>(count_ - 1));
  std::int64_t below = 0;
  for (const Range& bin : bins_) {
    below += bin.count;
    if (below > wanted) return bin.mean();
  }
  return 0;
}

}  // namespace engine::view
