#include "engine/data/blend.h"

#include <doctest/doctest.h>

#include <limits>

#include "tests/data/oracle.h"

namespace engine::data {
namespace {

std::vector<std::int16_t> Datasets(const std::vector<double>& weights, std::int64_t size) {
  const absl::StatusOr<BlendIndex> blend = BuildBlendIndex(weights, size);
  REQUIRE(blend.ok());
  return blend->datasets;
}

}  // namespace

TEST_CASE("known blends") {
  CHECK(Datasets({0.3, 0.7}, 10) == std::vector<std::int16_t>{1, 0, 1, 1, 0, 1, 1, 0, 1, 1});
  CHECK(Datasets({1, 2, 3}, 12) == std::vector<std::int16_t>{2, 1, 0, 2, 1, 2, 0, 2, 1, 2, 1, 2});
}

TEST_CASE("blends, sizes and normalised weights are the oracle's, bit for bit") {
  for (const nlohmann::json& oracle_case : Oracle().at("blends")) {
    const auto weights = oracle_case["weights"].get<std::vector<double>>();
    const std::int64_t size = oracle_case["size"];
    CAPTURE(weights.size());
    const absl::StatusOr<std::vector<double>> shares = NormalizeWeights(weights);
    REQUIRE(shares.ok());
    CHECK(*shares == oracle_case["shares"].get<std::vector<double>>());
    for (std::size_t k = 0; k < weights.size(); ++k) {
      CHECK(BlendTarget(size, (*shares)[k]) == oracle_case["targets"][k].get<std::int64_t>());
      CHECK(BlendBuiltSize(BlendTarget(size, (*shares)[k])) == oracle_case["built"][k].get<std::int64_t>());
    }
    const absl::StatusOr<BlendIndex> blend = BuildBlendIndex(*shares, size);
    REQUIRE(blend.ok());
    for (std::size_t i = 0; i < blend->datasets.size(); ++i) {
      CHECK(blend->datasets[i] == oracle_case["blend"][i][0].get<std::int16_t>());
      CHECK(blend->samples[i] == oracle_case["blend"][i][1].get<std::int64_t>());
    }
  }
}

// By looking at all data sets for every sample; many are equal, so that the first of equals is asked for all the time.
TEST_CASE("blends of many data sets are those of the plain rule") {
  for (const std::size_t count : {17, 40, 64, 300}) {
    for (const int kinds : {1, 3, 1000}) {
      CAPTURE(count);
      CAPTURE(kinds);
      std::vector<double> weights(count);
      for (std::size_t k = 0; k < count; ++k)
        weights[k] = 1.0 + static_cast<double>(k * k % 977 % static_cast<std::size_t>(kinds));
      const std::int64_t size = 4000;
      const absl::StatusOr<BlendIndex> blend = BuildBlendIndex(weights, size);
      REQUIRE(blend.ok());
      const std::vector<double> shares = *NormalizeWeights(weights);
      std::vector<std::int64_t> counts(count, 0);
      int wrong = 0;
      for (std::size_t i = 0; i < 4000; ++i) {
        std::size_t best = 0;
        const auto lag = [&](std::size_t k) {
          return shares[k] * std::max(static_cast<double>(i), 1.0) - static_cast<double>(counts[k]);
        };
        for (std::size_t k = 1; k < count; ++k) best = lag(k) > lag(best) ? k : best;
        wrong += blend->datasets[i] == static_cast<std::int16_t>(best) && blend->samples[i] == counts[best]
                     ? 0
                     : 1;
        ++counts[best];
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("the surplus rounds up twice") {
  CHECK(BlendTarget(1000, 0.3) == 300);
  CHECK(BlendBuiltSize(300) == 302);
  CHECK(BlendBuiltSize(0) == 0);
}

TEST_CASE("weights that mean nothing are refused") {
  for (const double bad :
       {0.0, -1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    const std::vector<double> weights = {1.0, bad};
    CHECK(absl::IsInvalidArgument(NormalizeWeights(weights).status()));
  }
  CHECK_FALSE(NormalizeWeights(std::vector<double>{1e308, 1e308}).ok());
  CHECK_FALSE(BuildBlendIndex({}, 3).ok());
  CHECK_FALSE(BuildBlendIndex(std::vector<double>{1.0}, std::int64_t{1} << 60).ok());
  CHECK_FALSE(BuildBlendIndex(std::vector<double>(40000, 1.0), 1).ok());
}

}  // namespace engine::data
