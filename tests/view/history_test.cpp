#include "engine/view/history.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

namespace engine::view {

TEST_CASE("history: few iterations have a bucket each, with every value") {
  History history;
  for (int i = 1; i <= 5; ++i) history.Add(i, metrics::kLoss, 10.0 - i);
  history.Add(3, metrics::kGradNorm, 0.5);
  history.SetTime(3, 1.5);
  const std::vector<Bucket> buckets = history.Buckets();
  REQUIRE(buckets.size() == 5);
  CHECK(buckets[2].first_iteration == 3);
  CHECK(buckets[2].last_iteration == 3);
  CHECK(buckets[2][metrics::kLoss].mean() == 7);
  CHECK(buckets[2][metrics::kGradNorm].max == 0.5);
  CHECK(buckets[1][metrics::kGradNorm].empty());
  CHECK(buckets[2].end_s == 1.5);
}

TEST_CASE("history: a million iterations stay in bounds, and no extreme is lost") {
  History history;
  constexpr int kIterations = 1'000'000;
  double sum = 0;
  for (int i = 1; i <= kIterations; ++i) {
    const double loss = i == 654'321 ? 99 : i == 123'456 ? -7 : 1 + 1.0 / i;
    sum += loss;
    history.Add(i, metrics::kLoss, loss);
  }
  for (const std::size_t most : {History::kMostBuckets, std::size_t{100}, std::size_t{1}}) {
    const std::vector<Bucket> buckets = history.Buckets(most);
    CHECK(buckets.size() <= most);
    CHECK(2 * buckets.size() >= most);
    Range all;
    std::int64_t expected_first = 1;
    for (const Bucket& bucket : buckets) {
      CHECK(bucket.first_iteration == expected_first);
      expected_first = bucket.last_iteration + 1;
      const Range& loss = bucket[metrics::kLoss];
      CHECK((loss.max == 99) == (bucket.first_iteration <= 654'321 && 654'321 <= bucket.last_iteration));
      all.Merge(loss);
    }
    CHECK(expected_first == kIterations + 1);
    CHECK(all.min == -7);
    CHECK(all.max == 99);
    CHECK(all.count == kIterations);
    CHECK(all.sum == doctest::Approx(sum));
  }
}

TEST_CASE(
    "history: what is not finite, or of no iteration, is left out; iterations may be huge and in any order") {
  History history;
  history.Add(2, metrics::kLoss, std::nan(""));
  history.Add(0, metrics::kLoss, 1);
  history.Add(-5, metrics::kLoss, 1);
  CHECK(history.Buckets().empty());
  history.Add(std::numeric_limits<std::int64_t>::max(), metrics::kLoss, 4);
  history.Add(1, metrics::kLoss, 3);
  const std::vector<Bucket> buckets = history.Buckets();
  REQUIRE(buckets.size() == 2);
  CHECK(buckets[0][metrics::kLoss].mean() == 3);
  CHECK(buckets[1].last_iteration == std::numeric_limits<std::int64_t>::max());
}

TEST_CASE("distribution: quantiles to 1 %") {
  Distribution distribution;
  CHECK(distribution.empty());
  CHECK(distribution.Quantile(0.5) == 0);
  for (int i = 1; i <= 1000; ++i) distribution.Add(i);
  distribution.Add(-1);
  distribution.Add(std::numeric_limits<double>::infinity());
  for (const double share : {0.0, 0.1, 0.5, 0.95, 1.0})
    CHECK(distribution.Quantile(share) == doctest::Approx(1 + 999 * share).epsilon(0.012));
}

}  // namespace engine::view
