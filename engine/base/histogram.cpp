#include "engine/base/histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/base/json.h"

namespace engine {
namespace {

std::vector<double> MakeLimits() {
  std::vector<double> limits;
  for (double limit = 1e-12; limit < 1e20; limit *= 1.1) limits.push_back(limit);
  limits.push_back(std::numeric_limits<double>::max());
  std::vector<double> all;
  for (auto limit = limits.rbegin(); limit != limits.rend(); ++limit) all.push_back(-*limit);
  all.push_back(0);
  all.insert(all.end(), limits.begin(), limits.end());
  return all;
}

const std::vector<double>& Limits() {
  static const std::vector<double> limits = MakeLimits();
  return limits;
}

int BucketOf(double value) {
  const std::vector<double>& limits = Limits();
  return static_cast<int>(std::upper_bound(limits.begin(), limits.end(), value) - limits.begin());
}

// A table from the upper half of a float's bits to the bucket of the least number whose bits begin so. All numbers that begin so differ by
// a 128th at most, and buckets by a tenth, so that each of them is in that bucket or the next.
std::vector<std::uint16_t> MakeFirstBuckets() {
  std::vector<std::uint16_t> buckets(std::size_t{1} << 16);
  for (std::uint32_t high = 0; high < buckets.size(); ++high) {
    const bool is_negative = high >= 0x8000;
    const auto least = std::bit_cast<float>(high << 16 | (is_negative ? 0xffffU : 0U));
    if (std::isfinite(least)) buckets[high] = static_cast<std::uint16_t>(BucketOf(least));
  }
  return buckets;
}

int FastBucketOf(float value) {
  static const std::vector<std::uint16_t> first = MakeFirstBuckets();
  int bucket = first[std::bit_cast<std::uint32_t>(value) >> 16];
  while (static_cast<double>(value) >= Limits()[static_cast<std::size_t>(bucket)]) ++bucket;
  return bucket;
}

}  // namespace

double Histogram::LimitOf(int bucket) { return Limits().at(static_cast<std::size_t>(bucket)); }

void Histogram::Add(std::span<const float> values) {
  std::vector<std::int64_t> counts(Limits().size());
  for (const float value : values) {
    if (!std::isfinite(value)) {
      ++not_finite_;
      continue;
    }
    const double number = value;
    ++count_;
    sum_ += number;
    sum_of_squares_ += number * number;
    min_ = std::min(min_, number);
    max_ = std::max(max_, number);
    ++counts[static_cast<std::size_t>(FastBucketOf(value))];
  }
  for (std::size_t bucket = 0; bucket < counts.size(); ++bucket) {
    if (counts[bucket] > 0) buckets_[static_cast<int>(bucket)] += counts[bucket];
  }
}

void Histogram::Add(const Histogram& other) {
  count_ += other.count_;
  not_finite_ += other.not_finite_;
  sum_ += other.sum_;
  sum_of_squares_ += other.sum_of_squares_;
  min_ = std::min(min_, other.min_);
  max_ = std::max(max_, other.max_);
  for (const auto& [bucket, count] : other.buckets_) buckets_[bucket] += count;
}

// JSON has no infinity, which min and max are where nothing is counted; FromText leaves them so.
std::string Histogram::ToText() const {
  return nlohmann::json{count_, not_finite_, sum_, sum_of_squares_, min_, max_, buckets_}.dump();
}

absl::StatusOr<Histogram> Histogram::FromText(const std::string& text) try {
  ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(text, "a histogram"));
  Histogram result;
  json.at(0).get_to(result.count_);
  json.at(1).get_to(result.not_finite_);
  json.at(2).get_to(result.sum_);
  json.at(3).get_to(result.sum_of_squares_);
  if (result.count_ > 0) {
    json.at(4).get_to(result.min_);
    json.at(5).get_to(result.max_);
  }
  json.at(6).get_to(result.buckets_);
  return result;
} catch (const nlohmann::json::exception& error) {
  return DataLoss("a histogram cannot be read: {}", error.what());
}

}  // namespace engine
