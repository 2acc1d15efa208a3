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
