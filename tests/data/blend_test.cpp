#include "engine/data/blend.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <ctime>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/data/oracle.h"

namespace engine::data {
namespace {

std::unique_ptr<Blend> MakeBlend(std::span<const double> weights, std::int64_t size) {
  absl::StatusOr<std::unique_ptr<Blend>> blend = Blend::Make(weights, size);
  REQUIRE(blend.ok());
  return *std::move(blend);
}

std::vector<std::int16_t> Datasets(const std::vector<double>& weights, std::int64_t size) {
  const std::unique_ptr<Blend> blend = MakeBlend(weights, size);
  std::vector<std::int16_t> datasets;
  for (std::int64_t i = 0; i < size; ++i) datasets.push_back(blend->At(i).dataset);
  return datasets;
}

// Megatron's rule, by looking at all data sets for every sample.
class PlainRule {
 public:
  explicit PlainRule(std::vector<double> shares) : shares_(std::move(shares)), counts_(shares_.size(), 0) {}
  Blend::Place Deal() {
    const double drawn = std::max(static_cast<double>(next_++), 1.0);
    std::size_t best = 0;
    double most = shares_[0] * drawn - static_cast<double>(counts_[0]);
    for (std::size_t k = 1; k < shares_.size(); ++k) {
      const double lag = shares_[k] * drawn - static_cast<double>(counts_[k]);
      if (lag <= most) continue;
      best = k;
      most = lag;
    }
    return {static_cast<std::int16_t>(best), counts_[best]++};
  }

 private:
  std::vector<double> shares_;
  std::vector<std::int64_t> counts_;
  std::int64_t next_ = 0;
};

bool Same(const Blend::Place& a, const Blend::Place& b) {
  return a.dataset == b.dataset && a.sample == b.sample;
}

// How many of the first samples of a blend come from elsewhere than by the plain rule.
std::int64_t OtherThanPlain(const std::vector<double>& weights, std::int64_t size) {
  const std::unique_ptr<Blend> blend = MakeBlend(weights, size);
  PlainRule plain(*NormalizeWeights(weights));
  std::int64_t other = 0;
  for (std::int64_t i = 0; i < size; ++i) other += Same(blend->At(i), plain.Deal()) ? 0 : 1;
  return other;
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
    const std::unique_ptr<Blend> blend = MakeBlend(*shares, size);
    for (std::int64_t i = 0; i < size; ++i) {
      const nlohmann::json& wanted = oracle_case["blend"][static_cast<std::size_t>(i)];
      CHECK(Same(blend->At(i), {wanted[0].get<std::int16_t>(), wanted[1].get<std::int64_t>()}));
    }
  }
}

// Of many weights some are equal, so that the first of equals is asked for all the time; some differ little; some are rare.
TEST_CASE("blends of many data sets are those of the plain rule") {
  std::mt19937_64 random(1);
  for (const std::size_t count : {1, 2, 17, 40, 41, 64, 300}) {
    for (const std::string kind :
         {"equal", "of three", "of many", "nearly equal", "some rare", "one large"}) {
      CAPTURE(count);
      CAPTURE(kind);
      std::vector<double> weights(count);
      for (std::size_t k = 0; k < count; ++k) {
        const auto drawn = static_cast<double>(random() % 1000);
        weights[k] = kind == "equal"          ? 1
                     : kind == "of three"     ? 1.0 + static_cast<double>(k * k % 977 % 3)
                     : kind == "of many"      ? 1 + drawn
                     : kind == "nearly equal" ? 1 + drawn * 1e-13
                     : kind == "some rare"    ? std::pow((drawn + 1) / 1000, 6)
                                              : 1 + (k == count / 2 ? 1000 * drawn : drawn);
      }
      CHECK(OtherThanPlain(weights, 20000) == 0);
    }
  }
}

// Where few data sets are due, one with a large share may be the only one, and a little early.
TEST_CASE("blends of few frequent and many other data sets are those of the plain rule") {
  std::mt19937_64 random(3);
  for (int round = 0; round < 30; ++round) {
    CAPTURE(round);
    std::vector<double> weights(200 + random() % 800);
    for (std::size_t k = 0; k < weights.size(); ++k)
      weights[k] = static_cast<double>(1 + random() % 1000) * (k < 5 ? 10.0 * (1 + round) : 1.0);
    CHECK(OtherThanPlain(weights, 10000) == 0);
  }
}

TEST_CASE("samples of a blend are the same in any order and from any thread") {
  std::mt19937_64 random(2);
  std::vector<double> weights(90);
  for (std::size_t k = 0; k < weights.size(); ++k)
    weights[k] = 1 + static_cast<double>(k % 3 == 0 ? 5 : random() % 100000);
  const std::int64_t size = 200'000;  // 13 blocks
  std::vector<Blend::Place> wanted;
  PlainRule plain(*NormalizeWeights(weights));
  for (std::int64_t i = 0; i < size; ++i) wanted.push_back(plain.Deal());
  const auto is_right = [&](const Blend& blend, std::int64_t i) {
    return Same(blend.At(i), wanted[static_cast<std::size_t>(i)]);
  };
  SUBCASE("the last one first, then all from behind") {
    const std::unique_ptr<Blend> blend = MakeBlend(weights, size);
    std::int64_t wrong = 0;
    for (std::int64_t i = size; i-- > 0;) wrong += is_right(*blend, i) ? 0 : 1;
    CHECK(wrong == 0);
  }
  SUBCASE("at random, which is further and further on") {
    const std::unique_ptr<Blend> blend = MakeBlend(weights, size);
    std::int64_t wrong = 0;
    for (std::int64_t i = 1; i <= 2000; ++i)
      wrong +=
          is_right(*blend, static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(100 * i))) ? 0 : 1;
    CHECK(wrong == 0);
  }
  SUBCASE("by threads, each at its own place") {
    const std::unique_ptr<Blend> blend = MakeBlend(weights, size);
    std::array<std::int64_t, 6> wrong = {};
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < wrong.size(); ++t) {
      threads.emplace_back([&, t] {
        for (std::int64_t i = static_cast<std::int64_t>(t) * 30000; i < size; i += 37)
          wrong[t] += is_right(*blend, i) ? 0 : 1;
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == std::array<std::int64_t, 6>{});
  }
}

// By hand, as it takes ten seconds: what it is to ask for a sample at the end of an epoch of 10^12 tokens.
TEST_CASE("the last sample of a blend of a thousand data sets and 10^8 samples" * doctest::skip()) {
  for (const bool differ : {false, true}) {
    std::vector<double> weights(1000);
    for (std::size_t k = 0; k < weights.size(); ++k)
      weights[k] = differ ? 1e6 + static_cast<double>(k * k) : 1.0 + static_cast<double>(k % 7);
    const std::unique_ptr<Blend> blend = MakeBlend(weights, 122'070'312);
    const std::clock_t begin = std::clock();
    CHECK(blend->At(122'070'311).sample > 0);
    MESSAGE(std::string(differ ? "different" : "seven")
            << " weights: " << static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC << " s");
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
  CHECK_FALSE(Blend::Make({}, 3).ok());
  CHECK_FALSE(Blend::Make(std::vector<double>{1.0}, std::int64_t{1} << 60).ok());
  CHECK_FALSE(Blend::Make(std::vector<double>(40000, 1.0), 1).ok());
}

}  // namespace engine::data
