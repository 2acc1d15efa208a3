#include "engine/base/histogram.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace engine {
namespace {

// Of all kinds: any bits, the sizes of weights, limits of buckets and their neighbours.
std::vector<float> ManyNumbers() {
  std::mt19937 random(7);
  std::vector<float> numbers = {0.0F,
                                -0.0F,
                                1.0F,
                                -1.0F,
                                std::numeric_limits<float>::denorm_min(),
                                std::numeric_limits<float>::max(),
                                std::numeric_limits<float>::lowest()};
  for (int i = 0; i < 20'000; ++i) {
    const auto any = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isfinite(any)) numbers.push_back(any);
    numbers.push_back(std::normal_distribution<float>(0, 0.02F)(random));
  }
  for (int bucket = 1; Histogram::LimitOf(bucket) < 1e20; ++bucket) {
    const auto limit = static_cast<float>(Histogram::LimitOf(bucket));
    for (const float towards : {-1e30F, 1e30F}) numbers.push_back(std::nextafter(limit, towards));
    numbers.push_back(limit);
  }
  return numbers;
}

}  // namespace

TEST_CASE("histogram: each bucket has the numbers from the limit before it up to its own") {
  const std::vector<float> numbers = ManyNumbers();
  Histogram histogram;
  histogram.Add(numbers);
  CHECK(histogram.count() == std::ssize(numbers));
  std::int64_t counted = 0;
  for (const auto& [bucket, count] : histogram.buckets()) {
    const double end = Histogram::LimitOf(bucket);
    const double begin =
        bucket > 0 ? Histogram::LimitOf(bucket - 1) : -std::numeric_limits<double>::infinity();
    std::int64_t within = 0;
    for (const double number : numbers) within += number >= begin && number < end ? 1 : 0;
    CHECK(count == within);
    counted += count;
  }
  CHECK(counted == histogram.count());
  CHECK(histogram.min() == std::numeric_limits<float>::lowest());
  CHECK(histogram.max() == std::numeric_limits<float>::max());
}

TEST_CASE("histogram: limits are 1e-12 · 1.1^n on both sides of zero") {
  int zero = 0;
  while (Histogram::LimitOf(zero) < 0) ++zero;
  CHECK(Histogram::LimitOf(zero) == 0);
  for (const int n : {0, 1, 100, 771}) {
    CHECK(Histogram::LimitOf(zero + 1 + n) == doctest::Approx(1e-12 * std::pow(1.1, n)));
    CHECK(Histogram::LimitOf(zero - 1 - n) == -Histogram::LimitOf(zero + 1 + n));
  }
}

TEST_CASE("histogram: parts add up to the whole, numbers that are not finite are apart, and text keeps all") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> first = {1.5F, -2.0F, kInfinity};
  const std::vector<float> second = {0.25F, std::numeric_limits<float>::quiet_NaN()};
  Histogram whole;
  whole.Add(first);
  Histogram part;
  part.Add(second);
  whole.Add(part);
  CHECK(whole.count() == 3);
  CHECK(whole.not_finite() == 2);
  CHECK(whole.sum() == -0.25);
  CHECK(whole.sum_of_squares() == 1.5 * 1.5 + 4 + 0.0625);
  CHECK(whole.min() == -2);
  CHECK(whole.max() == 1.5);
  for (const Histogram& histogram : {whole, Histogram()}) {
    const absl::StatusOr<Histogram> read = Histogram::FromText(histogram.ToText());
    REQUIRE(read.ok());
    CHECK(read->ToText() == histogram.ToText());
    CHECK(read->min() == histogram.min());
    CHECK(read->buckets() == histogram.buckets());
  }
  CHECK(!Histogram::FromText("[1]").ok());
}

}  // namespace engine
